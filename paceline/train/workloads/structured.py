"""Structured output: records moved between text, JSON, CSV, YAML, Markdown and HTML; SQL; tool calls."""

# ruff: noqa: E501 – one entry of a table per line reads best

import json
import random
from collections.abc import Callable

from paceline.train.chats import Chat, ask
from paceline.train.workloads.words import ADJECTIVES, ANIMALS, CITIES, COLOURS, FRUITS, ITEMS, JOBS, NAMES, plural

Record = dict[str, object]
Rows = list[Record]

_FIELDS: dict[str, Callable[[random.Random], object]] = {
    "name": lambda r: r.choice(NAMES),
    "age": lambda r: r.randint(18, 79),
    "city": lambda r: r.choice(CITIES),
    "job": lambda r: r.choice(JOBS),
    "email": lambda r: f"{r.choice(NAMES).lower()}{r.randint(1, 99)}@example.com",
    "active": lambda r: r.random() < 0.5,
    "item": lambda r: r.choice(ITEMS),
    "colour": lambda r: r.choice(COLOURS),
    "count": lambda r: r.randint(1, 60),
    "price": lambda r: round(r.randint(100, 9999) / 100, 2),
    "fruit": lambda r: r.choice(FRUITS),
    "weight": lambda r: r.randint(1, 90),
    "title": lambda r: f"The {r.choice(ADJECTIVES).title()} {r.choice(ITEMS).title()}",
    "year": lambda r: r.randint(1950, 2025),
    "pages": lambda r: r.randint(80, 700),
    "id": lambda r: r.randint(100, 999),
    "score": lambda r: r.randint(0, 100),
    "animal": lambda r: r.choice(ANIMALS),
    "host": lambda r: f"{r.choice(['web', 'db', 'app', 'mail', 'cache'])}{r.randint(1, 9)}.local",
    "port": lambda r: r.choice([22, 80, 443, 3000, 5432, 6379, 8000, 8080, 9000]),
    "workers": lambda r: r.choice([1, 2, 4, 8, 16]),
    "status": lambda r: r.choice(["open", "closed", "pending", "paid", "sent"]),
    "date": lambda r: f"{r.randint(2020, 2026)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}",
}
_SCHEMAS = {
    "people": ("name", "age", "city", "job", "email", "active"),
    "products": ("item", "colour", "count", "price"),
    "books": ("title", "name", "year", "pages", "price"),
    "orders": ("id", "name", "item", "count", "status", "date"),
    "servers": ("host", "port", "workers", "active"),
    "students": ("name", "score", "city", "age"),
    "pets": ("name", "animal", "age", "colour", "weight"),
    "fruits": ("fruit", "count", "price", "colour"),
}
_SAY = {
    "name": "{} is the name", "age": "is {} years old", "city": "lives in {}", "job": "works as a {}",
    "email": "can be reached at {}", "score": "has a score of {}", "animal": "is a {}", "colour": "is {}",
    "weight": "weighs {} kilograms", "count": "has a count of {}", "price": "costs {}", "year": "is from {}",
    "pages": "has {} pages", "status": "is {}", "date": "is dated {}", "port": "listens on port {}",
    "workers": "runs {} workers", "item": "is for a {}",
}  # fmt: skip
_KNOWN: dict[str, tuple[tuple[str, ...], tuple[tuple[object, ...], ...]]] = {
    "twelve months of the year": (
        ("Month", "Days", "Season"),
        tuple(zip(
            ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
             "November", "December"),
            (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31),
            ("Winter", "Winter", *["Spring"] * 3, *["Summer"] * 3, *["Autumn"] * 3, "Winter"), strict=True)),
    ),
    "planets of the solar system": (
        ("Name", "Order", "Type"),
        tuple((n, i + 1, "rocky" if i < 4 else "gas giant" if i < 6 else "ice giant") for i, n in enumerate(
            ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"))),
    ),
    "days of the week": (
        ("Day", "Number", "Weekend"),
        tuple((d, i + 1, "yes" if i > 4 else "no") for i, d in enumerate(
            ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"))),
    ),
    "four seasons": (
        ("Season", "First month", "Weather"),
        (("Spring", "March", "mild"), ("Summer", "June", "warm"), ("Autumn", "September", "windy"),
         ("Winter", "December", "cold")),
    ),
    "largest countries of Europe": (
        ("Country", "Capital", "Language"),
        (("France", "Paris", "French"), ("Spain", "Madrid", "Spanish"), ("Germany", "Berlin", "German"),
         ("Italy", "Rome", "Italian"), ("Poland", "Warsaw", "Polish"), ("Portugal", "Lisbon", "Portuguese")),
    ),
    "numbers from one to ten": (
        ("Number", "Word", "Even"),
        tuple((i + 1, w, "yes" if i % 2 else "no") for i, w in enumerate(
            ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"))),
    ),
}  # fmt: skip
_FORMATS = ("JSON", "CSV", "YAML", "Markdown", "HTML")


def _rows(r: random.Random, schema: str, most: int = 6) -> Rows:
    fields = _SCHEMAS[schema]
    kept = [f for f in fields if f == fields[0] or r.random() < 0.6]
    kept = kept if len(kept) > 1 else list(fields[:2])
    return [{f: _FIELDS[f](r) for f in kept} for _ in range(r.randint(1 if most > 5 else 2, most))]


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def write(rows: Rows, to: str, indent: bool = True) -> str:
    """The rows in one of the formats."""
    columns = list(rows[0])
    if to == "JSON":
        if not indent:
            return "[" + ",\n ".join(json.dumps(row) for row in rows) + "]"
        return json.dumps(rows, indent=2)
    if to == "CSV":
        return "\n".join([",".join(columns), *(",".join(_plain(v) for v in row.values()) for row in rows)])
    if to == "YAML":
        return "\n".join(
            ("- " if i == 0 else "  ") + f"{k}: {_plain(v)}" for row in rows for i, (k, v) in enumerate(row.items())
        )
    if to == "Markdown":
        lines = ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
        return "\n".join([*lines, *("| " + " | ".join(_plain(v) for v in row.values()) + " |" for row in rows)])
    head = "    <tr>" + "".join(f"<th>{c}</th>" for c in columns) + "</tr>"
    body = ["    <tr>" + "".join(f"<td>{_plain(v)}</td>" for v in row.values()) + "</tr>" for row in rows]
    return "\n".join(["<table>", "  <thead>", head, "  </thead>", "  <tbody>", *body, "  </tbody>", "</table>"])


def _prose(r: random.Random, rows: Rows) -> str:
    sentences = []
    for row in rows:
        (first, subject), *rest = row.items()
        said = []
        for key, value in rest:
            if key == "active":
                said.append("is active" if value else "is not active")
            else:
                said.append(
                    _SAY.get(key, "has " + key + " {}").format(value) if key != "name" else f"belongs to {value}"
                )
        lead = (
            str(subject)
            if first in ("name", "title", "host")
            else f"The {subject}"
            if first != "id"
            else f"Order {subject}"
        )
        joined = said[0] if len(said) == 1 else ", ".join(said[:-1]) + " and " + said[-1]
        sentences.append(f"{lead} {joined}.")
    return " ".join(sentences)


def _only(r: random.Random, to: str) -> str:
    return r.choice(["", f" Write only the {to}.", f" Answer with the {to} only.", f" Return only {to}."])


def _extract(r: random.Random) -> Chat:
    rows = _rows(r, r.choice(list(_SCHEMAS)))
    to = r.choice(_FORMATS)
    keys = ", ".join(list(rows[0])[:-1]) + " and " + list(rows[0])[-1]
    what = {
        "JSON": f"a JSON array of objects with the keys {keys}", "CSV": f"CSV with the header {','.join(rows[0])}",
        "YAML": f"a YAML list with the keys {keys}", "Markdown": f"a Markdown table with the columns {keys}",
        "HTML": f"an HTML table with the columns {keys}",
    }[to]  # fmt: skip
    verb = r.choice(
        ["Turn this text into", "Convert this text to", "Extract the records from this text as", "Write this text as"]
    )
    return ask(f"{verb} {what}.{_only(r, to)}\n\n{_prose(r, rows)}", write(rows, to))


def _stock(r: random.Random) -> Chat:
    rows: Rows = [
        {"item": plural(r.choice(ITEMS)), "colour": r.choice(COLOURS), "count": r.randint(2, 60)}
        for _ in range(r.randint(3, 8))
    ]
    listed = ", ".join(f"{row['count']} {row['colour']} {row['item']}" for row in rows)
    to = r.choice(("CSV", "CSV", "JSON", "Markdown", "YAML"))
    detail = f" with the header {','.join(rows[0])}" if to == "CSV" else " with the keys item, colour and count"
    return ask(
        f"{r.choice(['Write', 'Put', 'Give'])} this stock list as {to}{detail}.{_only(r, to)}\n\n{listed}",
        write(rows, to),
    )


def _convert(r: random.Random) -> Chat:
    rows = _rows(r, r.choice(list(_SCHEMAS)), 5)
    source, to = r.sample(_FORMATS, 2)
    verb = r.choice(
        ["Convert this {} to {}.", "Turn this {} into {}.", "Rewrite this {} as {}.", "Translate this {} to {}."]
    )
    return ask(f"{verb.format(source, to)}{_only(r, to)}\n\n{write(rows, source, r.random() < 0.4)}", write(rows, to))


def _config(r: random.Random) -> Chat:
    names = {
        "server": ("host", "port", "workers"), "log": ("level", "file"), "limits": ("max_users", "max_files", "timeout_seconds"),
        "database": ("host", "port", "name"), "cache": ("size", "enabled"), "mail": ("sender", "enabled"),
    }  # fmt: skip
    values: dict[str, Callable[[], object]] = {
        "host": lambda: r.choice(["localhost", "127.0.0.1", "0.0.0.0", "db.local"]), "port": lambda: _FIELDS["port"](r),
        "workers": lambda: r.choice([1, 2, 4, 8]), "level": lambda: r.choice(["debug", "info", "warning", "error"]),
        "file": lambda: f"{r.choice(['app', 'server', 'main', 'error'])}.log", "name": lambda: r.choice(["main", "test", "shop", "users"]),
        "size": lambda: r.choice([64, 128, 256, 512]), "enabled": lambda: r.random() < 0.5,
        "sender": lambda: f"{r.choice(NAMES).lower()}@example.com",
    }  # fmt: skip
    chosen = r.sample(list(names), r.randint(1, 3))
    data = {s: {k: values.get(k, lambda: r.choice([10, 20, 30, 50, 100]))() for k in names[s]} for s in chosen}
    yaml = "\n".join(
        f"{s}:\n" + "\n".join(f"  {k}: {_plain(v)}" for k, v in inner.items()) for s, inner in data.items()
    )
    flat, wide = json.dumps(data), json.dumps(data, indent=2)
    if r.random() < 0.6:
        return ask(
            f"{r.choice(['Convert this JSON to YAML.', 'Write this JSON as YAML.'])}{_only(r, 'YAML')}\n\n{r.choice([flat, wide])}",
            yaml,
        )
    return ask(
        f"{r.choice(['Convert this YAML to JSON.', 'Write this YAML as JSON.'])}{_only(r, 'JSON')}\n\n{yaml}", wide
    )


def _knowledge(r: random.Random) -> Chat:
    topic = r.choice(list(_KNOWN))
    columns, table = _KNOWN[topic]
    kept = sorted(r.sample(range(len(columns)), r.randint(2, len(columns))))
    rows: Rows = [{columns[i]: line[i] for i in kept} for line in table]
    to = r.choice(_FORMATS)
    named = " and ".join([", ".join(columns[i] for i in kept[:-1]), columns[kept[-1]]])
    what = {
        "JSON": "a JSON array",
        "CSV": "a CSV file",
        "YAML": "a YAML list",
        "Markdown": "a Markdown table",
        "HTML": "an HTML table",
    }[to]
    forms = (
        f"Write {what} with the columns {named} for the {topic}.",
        f"Write {what} with one row for each of the {topic} and the columns {named}.",
        f"Give me {what} of the {topic} with {named}.",
    )
    return ask(r.choice(forms) + _only(r, to), write(rows, to))


_TYPES = {"age": "INTEGER", "count": "INTEGER", "price": "REAL", "year": "INTEGER", "pages": "INTEGER", "id": "INTEGER",
          "score": "INTEGER", "port": "INTEGER", "workers": "INTEGER", "weight": "INTEGER", "active": "BOOLEAN", "date": "DATE"}  # fmt: skip


def _sql_value(value: object) -> str:
    return (
        "'" + value + "'"
        if isinstance(value, str)
        else _plain(value).upper()
        if isinstance(value, bool)
        else str(value)
    )


def _sql(r: random.Random) -> Chat:
    table = r.choice(list(_SCHEMAS))
    fields = list(_SCHEMAS[table])
    form = r.randrange(5)
    if form == 0:
        lines = ",\n".join(f"  {f} {_TYPES.get(f, 'TEXT')}" for f in fields)
        return ask(
            f"Write the SQL statement that creates the table {table} with the columns {', '.join(fields)}.",
            f"```sql\nCREATE TABLE {table} (\n{lines}\n);\n```",
        )
    if form == 1:
        rows = _rows(r, table, 4)
        values = ",\n".join("  (" + ", ".join(_sql_value(v) for v in row.values()) + ")" for row in rows)
        return ask(
            f"Write one SQL INSERT into the table {table} for these rows.\n\n{write(rows, 'CSV')}",
            f"```sql\nINSERT INTO {table} ({', '.join(rows[0])})\nVALUES\n{values};\n```",
        )
    shown = r.sample(fields, r.randint(1, min(3, len(fields))))
    field = r.choice(fields)
    value = _FIELDS[field](r)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    word, sign = r.choice([("above", ">"), ("below", "<"), ("equal to", "=")]) if number else ("equal to", "=")
    where = f"WHERE {field} {sign} {_sql_value(value)}"
    if form == 2:
        return ask(
            f"Write a SQL query that counts the rows of {table} where {field} is {word} {_plain(value)}.",
            f"```sql\nSELECT COUNT(*)\nFROM {table}\n{where};\n```",
        )
    if form == 3:
        by = r.choice([f for f in fields if f != field])
        return ask(f"Write a SQL query that shows, for each {by}, the number of rows in {table}, the largest first.",
                   f"```sql\nSELECT {by}, COUNT(*) AS total\nFROM {table}\nGROUP BY {by}\nORDER BY total DESC;\n```")  # fmt: skip
    order = r.choice(shown)
    down = r.random() < 0.5
    named = " and ".join(shown) if len(shown) < 3 else f"{shown[0]}, {shown[1]} and {shown[2]}"
    ask_order = f", sorted by {order}{' from high to low' if down else ''}"
    return ask(f"Write a SQL query that returns {named} from the table {table} where {field} is {word} {_plain(value)}{ask_order}.",
               f"```sql\nSELECT {', '.join(shown)}\nFROM {table}\n{where}\nORDER BY {order}{' DESC' if down else ''};\n```")  # fmt: skip


_TOOLS: dict[str, tuple[str, str, dict[str, str]]] = {
    "get_weather": ("city", "What is the weather in {}?", {"city": "city"}),
    "get_time": ("city", "What time is it in {}?", {"city": "city"}),
    "find_product": ("item", "Do you have a {} in stock?", {"item": "item"}),
    "find_person": ("name", "Find the record of {}.", {"name": "name"}),
}


def _tool(r: random.Random) -> Chat:
    listed = r.sample(list(_TOOLS), r.randint(1, 3))
    tools: tuple[dict[str, object], ...] = tuple(
        {"type": "function", "function": {"name": n, "parameters": {"type": "object", "properties": {_TOOLS[n][0]: {"type": "string"}}, "required": [_TOOLS[n][0]]}}}
        for n in listed
    )  # fmt: skip
    name = r.choice(listed)
    key, question, _ = _TOOLS[name]
    value = str(_FIELDS[key](r))
    call = f"<tool_call>\n<function={name}>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n</tool_call>"
    user = ("user", question.format(value))
    if r.random() < 0.5:
        return Chat((user,), call, tools=tools)
    degrees, hour, minute, count = r.randint(-5, 35), r.randint(0, 23), r.randint(0, 59), r.randint(0, 40)
    sky, age, city = r.choice(["sunny", "cloudy", "rainy", "windy"]), r.randint(18, 80), r.choice(CITIES)
    result, answer = {
        "get_weather": ({"temperature": degrees, "sky": sky}, f"It is {sky} in {value}, with {degrees} degrees."),
        "get_time": ({"time": f"{hour:02d}:{minute:02d}"}, f"It is {hour:02d}:{minute:02d} in {value}."),
        "find_product": (
            {"item": value, "count": count},
            f"Yes, there are {count} in stock." if count else "No, it is sold out.",
        ),
        "find_person": ({"name": value, "age": age, "city": city}, f"{value} is {age} years old and lives in {city}."),
    }[name]
    return Chat((user, ("assistant", call), ("tool", json.dumps(result))), answer, tools=tools)


def _again(r: random.Random) -> Chat:
    """A second turn: the same records in another format."""
    rows = _rows(r, r.choice(list(_SCHEMAS)), 4)
    first, second = r.sample(_FORMATS, 2)
    turns = (
        ("user", f"Write this text as {first}.{_only(r, first)}\n\n{_prose(r, rows)}"),
        ("assistant", write(rows, first)),
        (
            "user",
            r.choice(["Now write it as {}.", "Now the same as {}, please.", "Convert that to {}."]).format(second),
        ),
    )
    return Chat(turns, write(rows, second))


def make(r: random.Random) -> Chat:
    makers = (_extract, _stock, _convert, _config, _knowledge, _sql, _tool, _again)
    return r.choices(makers, (28, 10, 18, 10, 12, 14, 6, 6))[0](r)
