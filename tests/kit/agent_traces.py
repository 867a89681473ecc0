"""Agent conversations as token ids: what a tool loop sends, turn after turn, with everything that clients do to it.

A turn's prompt is all messages so far and the header of the next reply. Tool results make it grow to a context limit,
where the client starts over with a summary. In between it edits old messages, shortens old tool results, asks for other
replies, opens side branches, and drops connections and tries again. Lengths are in tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

HEADER = 4


@dataclass(frozen=True)
class Turn:
    """`stop` is after how many computed tokens (prompt and reply) the client hangs up; None if it does not."""

    prompt: list[int]
    boundaries: list[int]
    reply: list[int]
    stop: int | None = None


class Conversation:
    """`rewrites`: the client sends replies back without their reasoning, so in other tokens than were produced."""

    def __init__(self, seed: int, system: list[int], context: int, rewrites: bool) -> None:
        self._random = Random(seed)
        self._context = context
        self._rewrites = rewrites
        self._system = system
        self._messages = [system, self._new(50, 1500)]

    def turns(self, n: int) -> Iterator[Turn]:
        """n turns that are answered, and beside them those that are not or that lead nowhere."""
        for _ in range(n):
            event = self._random.random()
            if event < 0.08 and len(self._messages) > 6:
                self._edit()
            reply = self._tokens(int(self._random.lognormvariate(5.5, 0.7)))
            turn = self._turn(self._messages, reply)
            if 0.1 < event < 0.2:
                yield self._hang_up(turn)
            elif 0.2 < event < 0.25:
                yield self._turn(self._messages, self._tokens(200))
            elif 0.25 < event < 0.3:
                yield self._turn([*self._messages[:-1], self._new(100, 500)], self._tokens(200))
            yield turn
            kept = reply[len(reply) // 2 :] if self._rewrites else reply
            self._messages += [self._header() + kept + [2], self._new(300, 16_000)]
            if sum(map(len, self._messages)) > self._context - 2000:
                self._messages = [self._system, self._new(1500, 4000)]

    def _turn(self, messages: list[list[int]], reply: list[int]) -> Turn:
        prompt: list[int] = []
        boundaries = []
        for message in messages:
            prompt += message
            boundaries.append(len(prompt))
        return Turn(prompt + self._header(), boundaries, reply)

    def _hang_up(self, turn: Turn) -> Turn:
        new = len(turn.prompt) + len(turn.reply) - sum(map(len, self._messages[:-1]))
        stop = len(turn.prompt) + len(turn.reply) - self._random.randrange(1, new)
        return Turn(turn.prompt, turn.boundaries, turn.reply, stop)

    def _edit(self) -> None:
        """Another text for one message: all after it is gone, or stays and moves."""
        index = self._random.randrange(len(self._messages) // 2, len(self._messages) - 1)
        self._messages[index] = self._new(50, 400)
        if self._random.random() < 0.5:
            del self._messages[index + 1 :]

    def _new(self, least: int, most: int) -> list[int]:
        return self._header() + self._tokens(int(least * (most / least) ** self._random.random())) + [2]

    def _header(self) -> list[int]:
        return [1, 3, 5, 7]

    def _tokens(self, n: int) -> list[int]:
        return [self._random.randrange(10, 150_000) for _ in range(max(1, n))]
