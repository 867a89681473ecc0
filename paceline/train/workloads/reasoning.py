"""Worked arithmetic: word problems with small numbers, solved step by step, some with a `<think>` part."""

# ruff: noqa: E501 – one entry of a table per line reads best

import random
from collections.abc import Callable

from paceline.train.chats import Chat, ask
from paceline.train.workloads.words import COLOURS, FRUITS, ITEMS, NAMES, plural

# A problem: the question, the steps, the final answer.
Problem = tuple[str, list[str], str]


def _things(r: random.Random) -> str:
    return plural(r.choice((*FRUITS, *ITEMS)))


def _bags(r: random.Random) -> Problem:
    who, friend, things = *r.sample(NAMES, 2), _things(r)
    size, bags = r.randint(3, 12), r.randint(2, 9)
    total = size * bags
    eaten, given = r.randint(1, total // 3), r.randint(1, total // 3)
    return (
        f"A shop sells {things} in bags of {size}. {who} buys {bags} bags, loses {eaten} {things} and gives {given} to {friend}. "
        f"How many {things} does {who} have left?",
        [f"{who} buys {bags} × {size} = {total} {things}.", f"After losing {eaten}, {who} has {total} - {eaten} = {total - eaten}.",
         f"After giving {given} to {friend}, {who} has {total - eaten} - {given} = {total - eaten - given}."],
        f"{total - eaten - given} {things}",
    )  # fmt: skip


def _speed(r: random.Random) -> Problem:
    slow, gap, hours = r.randint(3, 9) * 10, r.randint(1, 5) * 10, r.randint(2, 6)
    fast, thing = slow + gap, r.choice(["train", "car", "bus", "ship"])
    same = r.random() < 0.6
    far = (fast - slow if same else fast + slow) * hours
    way = "in the same direction" if same else "in opposite directions"
    sign, word = ("-", "difference") if same else ("+", "sum")
    return (
        f"A {thing} drives {slow} kilometres in one hour. Another {thing} drives {fast} kilometres in one hour. They leave the "
        f"same place at the same time {way}. How far apart are they after {hours} hours?",
        [f"After {hours} hours the first {thing} is {slow} × {hours} = {slow * hours} kilometres away.",
         f"The second {thing} is {fast} × {hours} = {fast * hours} kilometres away.",
         f"The {word} is {fast * hours} {sign} {slow * hours} = {far} kilometres."],
        f"{far} kilometres",
    )  # fmt: skip


def _ages(r: random.Random) -> Problem:
    old, young = r.sample(NAMES, 2)
    x, times, years = r.randint(4, 15), r.randint(2, 3), r.randint(2, 10)
    word = "twice" if times == 2 else "three times"
    total = x * (times + 1) + 2 * years
    return (
        f"{old} is {word} as old as {young}. In {years} years the sum of their ages will be {total}. How old are {old} and {young} now?",
        [f"In {years} years both are {years} years older, together 2 × {years} = {2 * years} years.",
         f"Now the sum of their ages is {total} - {2 * years} = {total - 2 * years}.",
         f"{old} counts {times} parts and {young} 1 part, so there are {times + 1} parts.",
         f"One part is {total - 2 * years} / {times + 1} = {x}.", f"{old} is {times} × {x} = {times * x}."],
        f"{old} is {times * x} and {young} is {x}",
    )  # fmt: skip


def _tiles(r: random.Random) -> Problem:
    long, wide, price = r.randint(2, 9), r.randint(2, 7), r.randint(1, 6)
    side = r.choice([50, 100])
    per = 100 // side
    a, b = long * per, wide * per
    return (
        f"A floor is {long} metres long and {wide} metres wide. One tile is a square of {side} centimetres. How many tiles are "
        f"needed, and what do they cost at {price} euros each?",
        [f"Along the length there are {long * 100} / {side} = {a} tiles.", f"Along the width there are {wide * 100} / {side} = {b} tiles.",
         f"Together {a} × {b} = {a * b} tiles are needed.", f"They cost {a * b} × {price} = {a * b * price} euros."],
        f"{a * b} tiles, {a * b * price} euros",
    )  # fmt: skip


def _change(r: random.Random) -> Problem:
    who, things, others = r.choice(NAMES), _things(r), _things(r)
    n, m, p, q = r.randint(2, 8), r.randint(1, 6), r.randint(2, 9), r.randint(1, 9)
    cost = n * p + m * q
    paid = next(note for note in (20, 50, 100, 200) if note > cost)
    return (
        f"{who} buys {n} {things} at {p} euros each and {m} {others} at {q} euros each, and pays with {paid} euros. How much change does {who} get?",
        [f"The {things} cost {n} × {p} = {n * p} euros.", f"The {others} cost {m} × {q} = {m * q} euros.",
         f"Together that is {n * p} + {m * q} = {cost} euros.", f"The change is {paid} - {cost} = {paid - cost} euros."],
        f"{paid - cost} euros",
    )  # fmt: skip


def _percent(r: random.Random) -> Problem:
    thing, price, off = r.choice(ITEMS), r.randint(2, 40) * 10, r.choice([5, 10, 20, 25, 30, 40, 50])
    cut = price * off / 100
    text = f"{cut:g}"
    return (
        f"A {thing} costs {price} euros. Its price is reduced by {off} percent. What does it cost now?",
        [
            f"{off} percent of {price} is {price} × {off} / 100 = {text}.",
            f"The new price is {price} - {text} = {price - cut:g} euros.",
        ],
        f"{price - cut:g} euros",
    )


def _share(r: random.Random) -> Problem:
    things, people, each, rest = _things(r), r.randint(3, 9), r.randint(3, 12), r.randint(0, 2)
    total = people * each + rest
    return (
        f"{people} children share {total} {things} equally. How many does each child get, and how many are left over?",
        [
            f"{people} × {each} = {people * each}, so each child gets {each} {things}.",
            f"Left over are {total} - {people * each} = {rest}.",
        ],
        f"each child gets {each}, {rest} left over",
    )


def _work(r: random.Random) -> Problem:
    who, wage, hours, days, spent = (
        r.choice(NAMES),
        r.randint(8, 25),
        r.randint(3, 8),
        r.randint(2, 6),
        r.randint(5, 50),
    )
    day = wage * hours
    return (
        f"{who} earns {wage} euros an hour and works {hours} hours a day for {days} days. Then {who} spends {spent} euros. How much money is left?",
        [f"In one day {who} earns {wage} × {hours} = {day} euros.", f"In {days} days {who} earns {day} × {days} = {day * days} euros.",
         f"After spending {spent} euros, {day * days} - {spent} = {day * days - spent} euros are left."],
        f"{day * days - spent} euros",
    )  # fmt: skip


def _compare(r: random.Random) -> Problem:
    a, b, c, things = *r.sample(NAMES, 3), _things(r)
    n, more, times = r.randint(3, 30), r.randint(2, 15), r.randint(2, 4)
    x, y = n + more, (n + more) * times
    return (
        f"{a} has {n} {things}. {b} has {more} more than {a}. {c} has {times} times as many as {b}. How many {things} do they have together?",
        [
            f"{b} has {n} + {more} = {x} {things}.",
            f"{c} has {x} × {times} = {y} {things}.",
            f"Together they have {n} + {x} + {y} = {n + x + y} {things}.",
        ],
        f"{n + x + y} {things}",
    )


def _sequence(r: random.Random) -> Problem:
    start, step = r.randint(1, 20), r.randint(2, 12)
    seen = [start + i * step for i in range(5)]
    return (
        f"What are the next two numbers in this sequence: {', '.join(map(str, seen))}?",
        [f"The difference is {seen[1]} - {seen[0]} = {step} each time.", f"The next number is {seen[4]} + {step} = {seen[4] + step}.",
         f"The one after it is {seen[4] + step} + {step} = {seen[4] + 2 * step}."],
        f"{seen[4] + step} and {seen[4] + 2 * step}",
    )  # fmt: skip


def _sum(r: random.Random) -> Problem:
    a, b, c = r.randint(2, 12), r.randint(2, 12), r.randint(2, 99)
    if r.random() < 0.5:
        return (
            f"What is {a} × {b} + {c}?",
            [f"First multiply: {a} × {b} = {a * b}.", f"Then add: {a * b} + {c} = {a * b + c}."],
            str(a * b + c),
        )
    x, y = r.randint(10, 99), r.randint(10, 99)
    tens, ones = x // 10 * 10 + y // 10 * 10, x % 10 + y % 10
    return (
        f"What is {x} + {y}?",
        [
            f"The tens give {x // 10 * 10} + {y // 10 * 10} = {tens}.",
            f"The ones give {x % 10} + {y % 10} = {ones}.",
            f"Together {tens} + {ones} = {x + y}.",
        ],
        str(x + y),
    )


def _boxes(r: random.Random) -> Problem:
    boxes, things = r.sample(COLOURS, 3), r.sample(["key", "coin", "ring", "letter", "ball"], 2)
    order = r.sample(boxes, 3)
    first, second, empty = order
    return (
        f"There are three boxes: {boxes[0]}, {boxes[1]} and {boxes[2]}. The {empty} box is empty. The {things[0]} and the {things[1]} are in "
        f"different boxes. The {things[0]} is not in the {second} box. Where are the {things[0]} and the {things[1]}?",
        [f"The {empty} box is empty, so only the {first} box and the {second} box are left." if boxes.index(first) < boxes.index(second)
         else f"The {empty} box is empty, so only the {second} box and the {first} box are left.",
         f"The {things[0]} is not in the {second} box, so it is in the {first} box.",
         f"The {things[1]} is in a different box, so it is in the {second} box."],
        f"the {things[0]} is in the {first} box and the {things[1]} is in the {second} box",
    )  # fmt: skip


def _minutes(r: random.Random) -> Problem:
    hour, minute, length = r.randint(6, 20), r.randrange(0, 60, 5), r.randrange(20, 150, 5)
    end = hour * 60 + minute + length
    hours, rest = divmod(minute + length, 60)
    thing = r.choice(["film", "lesson", "journey", "concert", "meeting"])
    return (
        f"A {thing} starts at {hour}:{minute:02d} and lasts {length} minutes. When does it end?",
        [f"{minute} + {length} = {minute + length} minutes after {hour}:00.",
         f"That is {hours} {'hour' if hours == 1 else 'hours'} and {rest} minutes.",
         f"{hour} + {hours} = {hour + hours}, so it ends at {end // 60}:{end % 60:02d}."],
        f"{end // 60}:{end % 60:02d}",
    )  # fmt: skip


_PROBLEMS: tuple[Callable[[random.Random], Problem], ...] = (
    _bags, _speed, _ages, _tiles, _change, _percent, _share, _work, _compare, _sequence, _sum, _boxes, _minutes,
)  # fmt: skip
_ENDINGS = ("Explain step by step.", "Think step by step.", "Show your work.", "Solve it step by step.", "")


def make(r: random.Random) -> Chat:
    question, steps, final = r.choice(_PROBLEMS)(r)
    ending = r.choice(_ENDINGS)
    numbered = [f"Step {i}: {text}" for i, text in enumerate(steps, 1)]
    said = final[0].upper() + final[1:]
    prompt = f"{question} {ending}".strip()
    if r.random() < 0.12:
        return ask(prompt, f"The answer is {final}.", "\n".join(steps))
    if r.random() < 0.08:
        other = r.choice(_PROBLEMS)(r)
        before = "\n".join(
            [*(f"Step {i}: {t}" for i, t in enumerate(other[1], 1)), f"Answer: {other[2][0].upper() + other[2][1:]}."]
        )
        return Chat(
            (("user", other[0]), ("assistant", before), ("user", prompt)), "\n".join([*numbered, f"Answer: {said}."])
        )
    return ask(prompt, "\n".join([*numbered, f"Answer: {said}."]))
