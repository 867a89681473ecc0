"""Short stories from a grammar: somebody, somewhere, a find or a wish, trouble, help, an ending that fits the prompt."""

# ruff: noqa: E501 – one entry of a table per line reads best

import random

from paceline.train.chats import Chat, ask
from paceline.train.workloads.words import ANIMALS, COLOURS, NAMES, article

_PEOPLE = (
    "lighthouse keeper", "clockmaker", "baker", "young girl", "old fisherman", "teacher", "small robot", "gardener", "night driver",
    "shy boy", "painter", "retired sailor", "librarian", "farmer", "postman", "little prince", "tailor", "musician", "tired king", "shoemaker",
    "brave knight", "curious child", "lonely giant", "bus driver", "watchmaker", "cook",
    *(f"{a} {n}" for a in ("small", "clever", "lazy", "brave", "old") for n in ("fox", "owl", "mouse", "bear", "hedgehog", "rabbit", "cat")),
)  # fmt: skip
_PLACES = (
    "by the sea", "in a small village", "at the edge of the forest", "in a quiet town", "on a small island", "high in the mountains",
    "in an old house", "near the harbour", "at the end of a long street", "beside the river", "in a busy city", "on a windy hill",
    "in a green valley", "under a stone bridge",
)  # fmt: skip
_OBJECTS = (
    "letter in a bottle", "golden key", "silver bell", "broken clock", "map of the valley", "lost dog", "small blue stone", "box of seeds",
    "music box", "red lantern", "diary", "wooden boat", "photograph", "magic pencil", "paper crown", "hidden door", "strange egg",
    "torn ticket", "green umbrella", "bag of coins", "secret garden", "white feather", "rusty bicycle", "wooden flute",
)  # fmt: skip
_PLAIN = (
    "key",
    "bell",
    "clock",
    "stone",
    "box",
    "lantern",
    "boat",
    "pencil",
    "crown",
    "egg",
    "ticket",
    "umbrella",
    "feather",
    "flute",
    "ring",
    "book",
)
_SKILLS = (
    "look after a garden", "play the drum", "bake bread", "sail a boat", "read the stars", "speak with birds", "repair clocks", "dance",
    "paint the sea", "tell stories", "climb trees", "make friends", "sing", "swim", "cook soup", "fly a kite",
)  # fmt: skip
_FEELINGS = ("happy", "proud", "calm", "grateful", "warm inside", "no longer alone")
_TRAITS = ("patient", "kind", "curious", "quiet", "careful", "cheerful", "stubborn", "gentle")


def _cap(text: str) -> str:
    return text[0].upper() + text[1:]


def _opening(r: random.Random, who: str, name: str, place: str) -> list[str]:
    trait = r.choice(_TRAITS)
    first = r.choice((
        f"Once upon a time, there was {article(who)} named {name} who lived {place}.",
        f"{_cap(place)} lived {article(who)} named {name}.",
        f"{name} was {article(who)} who lived {place}.",
        f"Long ago, {article(who)} named {name} lived {place}.",
    ))  # fmt: skip
    second = r.choice((
        f"Everyone knew that {name} was {trait}.", f"{name} was {trait} and liked the early morning.",
        f"Every day was the same for {name}, and that was fine.", f"{name} worked hard and went to bed early.",
        f"People said that {name} was the most {trait} {who.split()[-1]} they had ever met.",
    ))  # fmt: skip
    return [first, second]


def _find(r: random.Random, name: str, thing: str) -> list[str]:
    when = r.choice(
        (
            "One morning",
            "One evening",
            "On a cold day in winter",
            "One rainy afternoon",
            "On the first day of spring",
            "Late one night",
        )
    )
    middle = r.choice((
        "It was lying under a tree, covered with leaves.", "It was half hidden in the sand.", "It was lying on the doorstep.",
        "It was behind an old wall, and nobody had seen it for years.", "It was hidden under the stairs.",
    ))  # fmt: skip
    reaction = r.choice((
        f'"Who does this belong to?" asked {name}.', f'"I have never seen anything like this," said {name}.',
        f"{name} looked at it for a long time.", f"{name} took it home and put it on the table.",
    ))  # fmt: skip
    return [f"{when}, {name} found {article(thing)}.", middle, reaction]


def _learn(r: random.Random, name: str, skill: str) -> list[str]:
    when = r.choice(("One morning", "One day", "In the spring", "After a long winter", "On a quiet Sunday"))
    return [
        r.choice(
            (f"{when}, {name} decided to learn to {skill}.", f'{when}, {name} said, "I want to learn to {skill}."')
        ),
        r.choice(
            (
                "It was harder than it looked.",
                "The first day went badly.",
                f"At first, {name} made many mistakes.",
                "Nobody thought that it would work.",
            )
        ),
        r.choice(
            (
                f"But {name} tried again every day.",
                f"{name} did not give up.",
                f"Every evening, {name} practised until it was dark.",
            )
        ),
    ]


def _lose(r: random.Random, name: str, thing: str) -> list[str]:
    return [
        f"{r.choice(('One day', 'One morning', 'One windy night'))}, {name} lost {article(thing)}.",
        r.choice(
            (
                f"{name} looked everywhere, but it was gone.",
                f"{name} searched the whole house twice.",
                f"Without it, {name} felt sad.",
            )
        ),
        r.choice(
            (f'"I must find it before the night," said {name}.', f"{name} took a lamp and went out to look for it.")
        ),
    ]


def _helper(r: random.Random, name: str, friend: str, animal: str) -> list[str]:
    first = r.choice((
        f"Then {article(animal)} named {friend} came along the road.", f"Just then, {name} met {article(animal)} named {friend}.",
        f"That evening, {article(animal)} named {friend} knocked at the door.",
    ))  # fmt: skip
    talk = r.choice((
        f'"Can I help you?" asked {friend}.', f'"You look tired," said {friend}.', f'"I know what to do," said {friend}.',
        f'"Come with me," said {friend}.',
    ))  # fmt: skip
    answer = r.choice((
        f'"Yes, please," said {name}.', f"{name} smiled and nodded.", f'"Thank you," said {name}. "I cannot do it alone."',
        f"{name} thought about it and said yes.",
    ))  # fmt: skip
    walk = r.choice((
        "Together they walked through the night until the sun came up.", "Together they worked until the stars came out.",
        "They talked for hours and drank hot tea.", "They crossed the river and climbed the hill.",
    ))  # fmt: skip
    return [first, talk, answer, walk]


def _ending(r: random.Random, name: str, friend: str, thing: str, kind: str) -> list[str]:
    turn = {
        "find": (f"At last they found out that the {thing} belonged to an old woman in the next village.", f"In the end they learned that the {thing} had been waiting for {name} all the time.",
                 f"In the end, {name} gave the {thing} to a child who needed it more."),
        "learn": (f"After a few weeks, {name} could {thing} better than anyone else.", f"In the end, {name} learned to {thing}, and everybody came to see it.",
                  f"One day it worked, and {name} could {thing} at last."),
        "lose": (f"At last they saw the {thing} in the light of the moon.", f"In the end, the {thing} was where it had always been, on the shelf behind the door.",
                 f"In the morning, {friend} found the {thing} under a bush."),
    }[kind]  # fmt: skip
    feeling = r.choice(_FEELINGS)
    last = r.choice((
        f"{name} and {friend} stayed friends for the rest of their lives.", f"From that day on, {name} was never alone again.",
        "And whenever the wind blew, they told the story again.", f"{name} went home and slept well that night.",
        "Since then, the people of the village have told this story to their children.",
    ))  # fmt: skip
    return [r.choice(turn), f"{name} felt {feeling}.", last]


def tell(r: random.Random, who: str, place: str, kind: str, thing: str, name: str | None = None) -> str:
    """A story of two or three paragraphs; kind find, learn or lose; `thing` is an object or a skill."""
    name, friend = (name, r.choice(NAMES)) if name else r.sample(NAMES, 2)
    while friend == name:
        friend = r.choice(NAMES)
    event = {"find": _find, "learn": _learn, "lose": _lose}[kind](r, name, thing)
    opening, helper = (
        _opening(r, who, name, place),
        _helper(r, name, friend, r.choice((*ANIMALS, "child", "stranger", "sailor", "neighbour"))),
    )
    return "\n\n".join(
        (" ".join(opening), " ".join([*event, *helper]), " ".join(_ending(r, name, friend, thing, kind)))
    )


def _title(who: str, kind: str, thing: str) -> str:
    last = thing if kind != "learn" else "Long Lesson"
    return f"The {who.title()} and the {last.title()}"


def make(r: random.Random) -> Chat:
    who, place = r.choice(_PEOPLE), r.choice(_PLACES)
    kind = r.choice(("find", "find", "learn", "lose"))
    thing = r.choice(_SKILLS) if kind == "learn" else r.choice(_OBJECTS)
    if kind != "learn" and r.random() < 0.2:
        thing = f"{r.choice(COLOURS)} {r.choice(_PLAIN)}"
    does = {"find": f"finds {article(thing)}", "learn": f"learns to {thing}", "lose": f"loses {article(thing)}"}[kind]
    form = r.randrange(8)
    if form < 4:
        ask_for = r.choice(
            (
                "Write a short story",
                "Tell me a story",
                "Write a story",
                "Tell a short story",
                "Please write a short story",
            )
        )
        where = f" {place}" if r.random() < 0.3 else ""
        return ask(f"{ask_for} about {article(who)}{where} who {does}.", tell(r, who, place, kind, thing))
    if form == 4:
        return ask(
            f"Write a short story with a title about {article(who)} who {does}.",
            f"**{_title(who, kind, thing)}**\n\n" + tell(r, who, place, kind, thing),
        )
    if form == 5:
        name = r.choice(NAMES)
        return ask(
            f"Write a short story about {name}, {article(who)} who {does}.", tell(r, who, place, kind, thing, name)
        )
    if form == 6:
        text = tell(r, who, place, kind, thing)
        head, _, rest = text.partition("\n\n")
        return ask(
            f"{r.choice(('Continue this story.', 'Go on with this story.'))} In it, the {who} {does}.\n\n{head}", rest
        )
    first = tell(r, who, place, kind, thing)
    turns = (
        ("user", f"Tell me a story about {article(who)} who {does}."),
        ("assistant", first),
        ("user", r.choice(("Give it a title.", "What would be a good title?"))),
    )
    return Chat(turns, f"**{_title(who, kind, thing)}**")
