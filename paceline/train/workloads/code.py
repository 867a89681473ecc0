"""Small Python functions: write, complete, edit, explain, test. Functions come from parametrised patterns.

A function is a description, a signature, body lines and an explanation; the five tasks are views of the same function.
"""

# ruff: noqa: E501 – one entry of a table per line reads best

import ast
import inspect
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from paceline.train.chats import Chat, ask

_NOUNS = (
    "values",
    "numbers",
    "items",
    "scores",
    "prices",
    "words",
    "names",
    "lines",
    "rows",
    "records",
    "points",
    "sizes",
    "ages",
    "totals",
)
_NUMERIC = ("values", "numbers", "scores", "prices", "sizes", "ages", "totals", "points", "weights", "lengths")
_TEXTS = ("words", "names", "lines", "titles", "labels", "keys", "cities", "tags")


@dataclass(frozen=True, slots=True)
class Function:
    """`does` completes "a function that …"; `explain` says it in one or two sentences; `test` is an assert or two."""

    name: str
    params: tuple[str, ...]
    does: str
    body: tuple[str, ...]
    explain: str
    test: tuple[str, ...] = ()

    def text(self, doc: bool = False) -> str:
        lines = [f"def {self.name}({', '.join(self.params)}):"]
        if doc:
            lines.append(f'    """{self.does[0].upper() + self.does[1:]}."""')
        return "\n".join([*lines, *("    " + line for line in self.body)])


def _one(noun: str) -> str:
    return {"cities": "city", "ages": "age", "boxes": "box"}.get(noun, noun.removesuffix("s"))


def _filter(r: random.Random) -> Function:
    many = r.choice(_NUMERIC)
    one = _one(many)
    limit = r.randint(1, 100)
    test, word, name = r.choice((
        (f"{one} > {limit}", f"above {limit}", "large"), (f"{one} < {limit}", f"below {limit}", "small"),
        (f"{one} % 2 == 0", "that are even", "even"), (f"{one} % 2 == 1", "that are odd", "odd"), (f"{one} >= 0", "that are not negative", "positive"),
    ))  # fmt: skip
    kind = r.randrange(4)
    if kind == 0:
        return Function(f"{name}_{many}", (many,), f"return a list of the {many} {word}", (f"return [{one} for {one} in {many} if {test}]",),
                        f"It goes through {many} and keeps each {one} where `{test}` is true. The kept ones are returned as a new list.")  # fmt: skip
    if kind == 1:
        return Function(f"count_{name}", (many,), f"count the {many} {word}",
                        ("count = 0", f"for {one} in {many}:", f"    if {test}:", "        count += 1", "return count"),
                        f"It starts with a count of 0 and adds 1 for each {one} where `{test}` is true. Then it returns the count.")  # fmt: skip
    if kind == 2:
        return Function(f"sum_{name}", (many,), f"return the sum of the {many} {word}",
                        ("total = 0", f"for {one} in {many}:", f"    if {test}:", f"        total += {one}", "return total"),
                        f"It adds each {one} where `{test}` is true to total, and returns total.")  # fmt: skip
    return Function(f"first_{name}", (many,), f"return the first of the {many} {word}, or None",
                    (f"for {one} in {many}:", f"    if {test}:", f"        return {one}", "return None"),
                    f"It looks at each {one} in order and returns the first where `{test}` is true. If there is none, it returns None.")  # fmt: skip


def _texts(r: random.Random) -> Function:
    many = r.choice(_TEXTS)
    one = _one(many)
    change, word = r.choice(((f"{one}.lower()", "in lower case"), (f"{one}.upper()", "in upper case"), (f"{one}.strip()", "without spaces around them"),
                             (f"{one}.title()", "in title case"), (f"{one}[::-1]", "reversed"), (f"len({one})", "as their lengths")))  # fmt: skip
    kind, size = r.randrange(4), r.randint(2, 9)
    if kind == 0:
        verb = r.choice(("change", "convert", "map"))
        return Function(f"{verb}_{many}", (many,), f"return the {many} {word}", (f"return [{change} for {one} in {many}]",),
                        f"It makes a new list with `{change}` for each {one} in {many}.")  # fmt: skip
    if kind == 1:
        return Function(f"group_{many}", (many,), f"group the {many} by their first letter",
                        ("groups = {}", f"for {one} in {many}:", f"    letter = {one}[0]", "    if letter not in groups:", "        groups[letter] = []",
                         f"    groups[letter].append({one})", "return groups"),
                        f"It puts each {one} into a list for its first letter. The result is a dictionary from letters to lists.")  # fmt: skip
    if kind == 2:
        return Function(f"long_{many}", (many,), f"return the {many} with more than {size} characters",
                        ("result = []", f"for {one} in {many}:", f"    if len({one}) > {size}:", f"        result.append({one})", "return result"),
                        f"It collects each {one} that is longer than {size} characters and returns the list.")  # fmt: skip
    return Function(f"join_{many}", (many,), f"join the {many} with commas", (f'return ", ".join({many})',),
                    f"It joins all {many} into one string, with a comma and a space between them.")  # fmt: skip


def _counts(r: random.Random) -> Function:
    many = r.choice((*_TEXTS, *_NUMERIC))
    one = _one(many)
    return r.choice((
        Function(f"count_{many}", (many,), f"count how often each of the {many} occurs",
                 ("counts = {}", f"for {one} in {many}:", f"    counts[{one}] = counts.get({one}, 0) + 1", "return counts"),
                 f"It keeps a dictionary of counts. For each {one} the count goes up by 1. Then it returns the dictionary."),
        Function(f"unique_{many}", (many,), f"return the {many} without duplicates, in order",
                 ("seen = set()", "result = []", f"for {one} in {many}:", f"    if {one} not in seen:", f"        seen.add({one})",
                  f"        result.append({one})", "return result"),
                 f"It remembers every {one} it has seen in a set. Only the first of each is added to the result."),
        Function(f"find_missing_{many}", ("expected", "present"), f"return the expected {many} that are not present",
                 ("missing = []", f"for {one} in expected:", f"    if {one} not in present:", f"        missing.append({one})", "return sorted(missing)"),
                 f"It collects each expected {one} that is not in present, and returns them sorted."),
        Function(f"index_{many}", (many,), f"return a dictionary from each of the {many} to its position",
                 (f"return {{{one}: index for index, {one} in enumerate({many})}}",),
                 f"It numbers the {many} from 0 and returns a dictionary from {one} to number."),
    ))  # fmt: skip


def _extreme(r: random.Random) -> Function:
    many = r.choice(_NUMERIC)
    one = _one(many)
    name, sign, word = r.choice(
        (("largest", ">", "largest"), ("smallest", "<", "smallest"), ("max", ">", "largest"), ("min", "<", "smallest"))
    )
    if r.random() < 0.5:
        return Function(f"{name}_{one}", (many,), f"return the {word} of the {many}",
                        (f"best = {many}[0]", f"for {one} in {many}[1:]:", f"    if {one} {sign} best:", f"        best = {one}", "return best"),
                        f"It starts with the first {one} and replaces it whenever it meets a {'larger' if sign == '>' else 'smaller'} one.",
                        (f"assert {name}_{one}([3, 1, 2]) == {3 if sign == '>' else 1}",))  # fmt: skip
    what = r.choice(("mean", "average"))
    return Function(f"{what}_{one}", (many,), f"return the {what} of the {many}, or 0 for an empty list",
                    (f"if not {many}:", "    return 0", f"return sum({many}) / len({many})"),
                    f"For an empty list it returns 0. Otherwise it divides the sum of the {many} by their number.",
                    (f"assert {what}_{one}([]) == 0", f"assert {what}_{one}([2, 4]) == 3"))  # fmt: skip


_N = ("n", "number", "count", "size")


def _numbers(r: random.Random) -> Function:
    n = r.choice(_N)
    return r.choice((
        Function("factorial", (n,), f"return the factorial of {n}", ("result = 1", f"for i in range(2, {n} + 1):", "    result *= i", "return result"),
                 f"It multiplies all whole numbers from 2 to {n} and returns the result.", ("assert factorial(0) == 1", "assert factorial(5) == 120")),
        Function("factorial", (n,), f"return the factorial of {n} by recursion", (f"if {n} <= 1:", "    return 1", f"return {n} * factorial({n} - 1)"),
                 f"If {n} is at most 1 it returns 1. Otherwise it multiplies {n} by the factorial of {n} - 1.", ("assert factorial(4) == 24",)),
        Function("fibonacci", (n,), f"return the first {n} Fibonacci numbers",
                 ("result = []", "a, b = 0, 1", f"for _ in range({n}):", "    result.append(a)", "    a, b = b, a + b", "return result"),
                 "It keeps two numbers and replaces them by the second and their sum, and collects the first.", ("assert fibonacci(5) == [0, 1, 1, 2, 3]",)),
        Function("is_prime", (n,), f"check whether {n} is a prime number",
                 (f"if {n} < 2:", "    return False", f"for i in range(2, int({n} ** 0.5) + 1):", f"    if {n} % i == 0:", "        return False", "return True"),
                 f"It tries all divisors up to the square root of {n}. If one divides {n}, the number is not prime.", ("assert is_prime(7)", "assert not is_prime(9)")),
        Function("gcd", ("a", "b"), "return the greatest common divisor of a and b", ("while b:", "    a, b = b, a % b", "return a"),
                 "It replaces a and b by b and the remainder until the remainder is 0.", ("assert gcd(12, 18) == 6",)),
        Function("is_even", (n,), f"check whether {n} is even", (f"return {n} % 2 == 0",), f"It returns True when {n} can be divided by 2.", ("assert is_even(4)",)),
        Function("sum_of_digits", (n,), f"return the sum of the digits of {n}", (f"return sum(int(digit) for digit in str({n}))",),
                 f"It turns {n} into a string and adds its digits.", ("assert sum_of_digits(123) == 6",)),
        Function("power", ("base", "exponent"), "return base to the power of exponent", ("result = 1", "for _ in range(exponent):", "    result *= base", "return result"),
                 "It multiplies the result by base as often as exponent says.", ("assert power(2, 3) == 8",)),
        Function("clamp", ("value", "low", "high"), "limit value to the range from low to high", ("if value < low:", "    return low", "if value > high:", "    return high", "return value"),
                 "It returns low for a value below it, high for a value above it, and otherwise the value.", ("assert clamp(5, 0, 3) == 3",)),
        Function("celsius_to_fahrenheit", ("celsius",), "convert degrees Celsius to Fahrenheit", ("return celsius * 9 / 5 + 32",),
                 "It multiplies by 9, divides by 5 and adds 32.", ("assert celsius_to_fahrenheit(100) == 212",)),
    ))  # fmt: skip


def _strings(r: random.Random) -> Function:
    text = r.choice(("text", "word", "sentence", "line", "name"))
    return r.choice((
        Function("is_palindrome", (text,), f"check whether a {text} is a palindrome",
                 (f"cleaned = {text}.lower().replace(\" \", \"\")", "return cleaned == cleaned[::-1]"),
                 f"It removes spaces, ignores case and compares the {text} with its reverse.", ('assert is_palindrome("level")', 'assert not is_palindrome("house")')),
        Function("count_vowels", (text,), f"count the vowels in a {text}", ("count = 0", f"for letter in {text}.lower():", '    if letter in "aeiou":', "        count += 1", "return count"),
                 f"It looks at each letter of the {text} and counts those that are vowels.", ('assert count_vowels("banana") == 3',)),
        Function("reverse", (text,), f"return a {text} in reverse order", (f"return {text}[::-1]",), f"It returns the {text} read from the end to the start.", ('assert reverse("abc") == "cba"',)),
        Function("count_words", (text,), f"count the words in a {text}", (f"return len({text}.split())",), f"It splits the {text} at spaces and returns the number of parts.", ('assert count_words("a b c") == 3',)),
        Function("longest_word", (text,), f"return the longest word of a {text}",
                 ('longest = ""', f"for part in {text}.split():", "    if len(part) > len(longest):", "        longest = part", "return longest"),
                 f"It goes through the words of the {text} and keeps the longest.", ('assert longest_word("a bcd ef") == "bcd"',)),
        Function("capitalize_words", (text,), f"return a {text} with every word capitalised", (f'return " ".join(part.capitalize() for part in {text}.split())',),
                 "It capitalises each word and joins the words with spaces.", ('assert capitalize_words("a tree") == "A Tree"',)),
        Function("count_letter", (text, "letter"), f"count how often a letter occurs in a {text}", ("count = 0", f"for character in {text}:", "    if character == letter:", "        count += 1", "return count"),
                 f"It compares each character of the {text} with the letter and counts the matches.", ('assert count_letter("banana", "a") == 3',)),
    ))  # fmt: skip


def _lists(r: random.Random) -> Function:
    many = r.choice(_NOUNS)
    one, width = _one(many), r.choice(("width", "size", "window"))
    return r.choice((
        Function(f"chunk_{many}", (many, "size"), f"split the {many} into lists of a given size",
                 ("chunks = []", f"for start in range(0, len({many}), size):", f"    chunks.append({many}[start:start + size])", "return chunks"),
                 f"It cuts {many} into slices of the given size and returns the slices."),
        Function("running_mean", (many, width), f"return the mean of the last {width} {many} at every position",
                 ("result = []", "total = 0.0", f"for index, {one} in enumerate({many}):", f"    total += {one}", f"    if index >= {width}:",
                  f"        total -= {many}[index - {width}]", f"    count = min(index + 1, {width})", "    result.append(total / count)", "return result"),
                 f"It keeps the total of the last {width} {many} and appends their mean for every position."),
        Function("binary_search", (many, "target"), f"find the position of target in sorted {many}, or -1",
                 ("low = 0", f"high = len({many}) - 1", "while low <= high:", "    middle = (low + high) // 2", f"    if {many}[middle] == target:", "        return middle",
                  f"    if {many}[middle] < target:", "        low = middle + 1", "    else:", "        high = middle - 1", "return -1"),
                 "It compares target with the middle of the range and goes on in the half where it must be."),
        Function(f"sort_{many}", (many,), f"return the {many} sorted from high to low", (f"return sorted({many}, reverse=True)",), f"It returns a new list with the {many} in falling order."),
        Function("bubble_sort", (many,), f"sort the {many} with bubble sort",
                 (f"for end in range(len({many}) - 1, 0, -1):", "    for i in range(end):", f"        if {many}[i] > {many}[i + 1]:",
                  f"            {many}[i], {many}[i + 1] = {many}[i + 1], {many}[i]", f"return {many}"),
                 "It swaps neighbours that are in the wrong order until the list is sorted."),
        Function("flatten", (many,), f"turn a list of lists of {many} into one list", ("result = []", f"for group in {many}:", "    result.extend(group)", "return result"),
                 "It appends the elements of every inner list to one list."),
        Function(f"merge_{many}", ("first", "second"), f"merge two sorted lists of {many}",
                 ("result = []", "i = j = 0", "while i < len(first) and j < len(second):", "    if first[i] <= second[j]:", "        result.append(first[i])", "        i += 1",
                  "    else:", "        result.append(second[j])", "        j += 1", "return result + first[i:] + second[j:]"),
                 "It takes the smaller head of both lists again and again, and appends what is left."),
    ))  # fmt: skip


def _files(r: random.Random) -> Function:
    many, limit = r.choice(("scores", "prices", "ages", "counts")), r.randint(2, 50)
    one = _one(many)
    return r.choice((
        Function(f"read_{many}", ("path",), f"read {many} by name from a file with lines of name,{one}",
                 (f"{many} = {{}}", "with open(path) as lines:", "    for line in lines:", f'        name, {one} = line.strip().split(",")', f"        {many}[name] = int({one})", f"return {many}"),
                 f"It splits each line at the comma and stores the {one} under the name."),
        Function(f"read_{many}", ("path",), f"read the first {limit} {many} by name from a file",
                 (f"{many} = {{}}", "with open(path) as lines:", "    for number, line in enumerate(lines):", f"        if number >= {limit}:", "            break",
                  f'        name, {one} = line.strip().split(",")', f"        {many}[name] = int({one})", f"return {many}"),
                 f"It stops after {limit} lines. Each line is split at the comma, and the {one} is stored under the name."),
        Function("count_lines", ("path",), "count the lines of a file", ("with open(path) as lines:", "    return sum(1 for line in lines)"), "It opens the file and counts its lines."),
        Function("write_lines", ("path", "lines"), "write lines to a file", ('with open(path, "w") as file:', "    for line in lines:", '        file.write(line + "\\n")'),
                 "It opens the file for writing and writes each line with a line break."),
        Function("load_json", ("path",), "load a JSON file", ("with open(path) as file:", "    return json.load(file)"), "It opens the file and parses it as JSON."),
    ))  # fmt: skip


def _classes(r: random.Random) -> Function:
    """Plain functions over dictionaries; the shape that records take in small programs."""
    key, other = r.sample(("name", "price", "age", "city", "count", "score"), 2)
    many = r.choice(("rows", "records", "people", "products", "orders"))
    one = {"people": "person"}.get(many, many.removesuffix("s"))
    return r.choice((
        Function(f"sort_by_{key}", (many,), f"sort the {many} by their {key}", (f'return sorted({many}, key=lambda {one}: {one}["{key}"])',), f"It returns the {many} in the order of their {key}."),
        Function(f"get_{key}", (one,), f"return the {key} of a {one}, or None", (f'if "{key}" in {one}:', f'    return {one}["{key}"]', "return None"), f"It looks up {key} and returns None if it is missing."),
        Function(f"total_{key}", (many,), f"add up the {key} of all {many}", ("total = 0", f"for {one} in {many}:", f'    total += {one}["{key}"]', "return total"), f"It adds the {key} of each {one}."),
        Function(f"{key}_by_{other}", (many,), f"return a dictionary from {other} to {key}", ("result = {}", f"for {one} in {many}:", f'    result[{one}["{other}"]] = {one}["{key}"]', "return result"),
                 f"For each {one} it stores the {key} under the {other}."),
        Function(f"update_{key}", (one, "value"), f"set the {key} of a {one} and return it", (f'{one}["{key}"] = value', f"return {one}"), f"It changes the {key} and returns the same {one}."),
    ))  # fmt: skip


_PATTERNS: tuple[Callable[[random.Random], Function], ...] = (
    _filter, _texts, _counts, _extreme, _numbers, _strings, _lists, _files, _classes,
)  # fmt: skip


def _fence(text: str) -> str:
    return f"```python\n{text}\n```"


_REPEAT = (
    "Write the whole function again and change nothing else.",
    "Write the whole function again.",
    "Show the whole function.",
)


def _edit(r: random.Random, f: Function) -> Chat | None:
    text, form = f.text(), r.randrange(5)
    if form == 0:
        old, new = f.params[0], r.choice(("data", "entries", "source", "elements", "inputs", "numbers", "items"))
        if new in text:
            return None
        return ask(
            f"Rename the parameter `{old}` to `{new}` everywhere in this Python function. {r.choice(_REPEAT)}\n\n{_fence(text)}",
            _fence(re.sub(rf"\b{old}\b", new, text)),
        )
    if form == 1:
        found = re.search(r"\b[1-9]\d*\b", text)
        if not found:
            return None
        new = str(r.choice([n for n in (5, 10, 20, 25, 30, 50, 64, 75, 100) if str(n) != found[0]]))
        changed = text[: found.start()] + new + text[found.end() :]
        return ask(
            f"Change the first {r.choice(('number', 'limit'))} from {found[0]} to {new} in this Python function. {r.choice(_REPEAT)}\n\n{_fence(text)}",
            _fence(changed),
        )
    if form == 2:
        new = r.choice(("process", "handle", "compute", "collect", "build")) + "_" + f.params[0]
        return ask(
            f"Rename this Python function to `{new}`. {r.choice(_REPEAT)}\n\n{_fence(text)}",
            _fence(re.sub(rf"\b{f.name}\b", new, text)),
        )
    if form == 3:
        return ask(
            f"Add a docstring to this Python function. {r.choice(_REPEAT)}\n\n{_fence(text)}", _fence(f.text(True))
        )
    at = next((i for i, line in enumerate(f.body) if line.startswith("for ")), None)
    if at is None:
        return None
    variable = f.body[at].split()[1].rstrip(",")
    end = next((i for i in range(at + 1, len(f.body)) if not f.body[i].startswith("    ")), len(f.body))
    word = r.choice(("checked", "seen", "done", "visited"))
    extra = f'print("{word}", {variable})'
    body = (*f.body[:end], "    " + extra, *f.body[end:])
    changed = "\n".join([text.split("\n")[0], *("    " + line for line in body)])
    return ask(
        f"Add `{extra}` as the last line inside the loop of this Python function. {r.choice(_REPEAT)}\n\n{_fence(text)}",
        _fence(changed),
    )


@cache
def _library() -> tuple[str, ...]:
    """Short functions with docstrings from the running Python's own library."""
    found = []
    for name in ("textwrap", "statistics", "shutil", "string", "random", "heapq", "bisect", "calendar", "fnmatch", "glob", "posixpath", "csv",
                 "json.decoder", "colorsys", "copy", "base64", "difflib", "fractions", "functools", "html", "keyword", "linecache", "operator",
                 "queue", "reprlib", "shlex", "stat", "tokenize", "types", "uuid", "warnings", "zipfile", "tempfile", "gzip"):  # fmt: skip
        source = inspect.getsource(import_module(name))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
                text = ast.get_source_segment(source, node)
                if text and node.col_offset == 0 and 80 < len(text) < 900:
                    found.append(text)
    return tuple(found)


def _complete_library(r: random.Random) -> Chat:
    text = r.choice(_library())
    lines = text.split("\n")
    cut = r.randint(1, max(1, len(lines) // 2))
    return ask(f"Complete this Python function.\n\n{_fence(chr(10).join(lines[:cut]))}", _fence(text))


def make(r: random.Random) -> Chat:
    f = r.choice(_PATTERNS)(r)
    form = r.choices(("write", "complete", "edit", "explain", "test", "both", "library"), (30, 14, 30, 12, 6, 5, 3))[0]
    if form == "library":
        return _complete_library(r)
    if form == "edit" and (chat := _edit(r, f)) is not None:
        return chat
    if form == "complete":
        head = f'def {f.name}({", ".join(f.params)}):\n    """{f.does[0].upper() + f.does[1:]}."""'
        return ask(
            f"{r.choice(('Complete this Python function.', 'Finish this Python function.', 'Fill in the body of this function.'))}\n\n{_fence(head)}",
            _fence(f.text(True)),
        )
    if form == "explain":
        return ask(
            f"{r.choice(('Explain what this Python function does.', 'What does this function do?', 'Explain this code.'))}\n\n{_fence(f.text())}",
            f"The function `{f.name}` takes {' and '.join(f'`{p}`' for p in f.params)}. {f.explain}",
        )
    if form == "test" and f.test:
        return ask(
            f"Write a test for this Python function.\n\n{_fence(f.text())}",
            _fence("\n".join([f"def test_{f.name}():", *("    " + line for line in f.test)])),
        )
    named = f" named `{f.name}`" if r.random() < 0.6 else ""
    verb = r.choice(
        (
            "Write a Python function{} to {}.",
            "Write a function{} in Python to {}.",
            "Please write a Python function{} to {}.",
            "I need a Python function{} to {}.",
        )
    )
    prompt = verb.format(named, f.does)
    written = _fence(f.text())
    if form == "both":
        return ask(f"{prompt} Explain it.", f"{written}\n\n{f.explain}")
    return ask(prompt, written)
