"""The five kinds of chat that the embedded model knows; each file makes one chat from a random generator.

`MAKERS` maps the kind to its maker. The same seed gives the same chat, except for code taken from
the running Python's library.
"""

import random
from collections.abc import Callable

from paceline.train.chats import Chat
from paceline.train.workloads import code, reasoning, story, structured, translation

MAKERS: dict[str, Callable[[random.Random], Chat]] = {
    "structured": structured.make,
    "code": code.make,
    "translation": translation.make,
    "reasoning": reasoning.make,
    "story": story.make,
}
