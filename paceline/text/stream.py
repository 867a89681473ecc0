"""One reply's token ids → text deltas, and where it ends when the client named stop strings.

Works token by token and byte by byte, so text and counts depend on the tokens alone, not on how many arrive at once.
A delta is always valid Unicode, and never holds a part of a stop string. Knows nothing of limits and stop ids: the
engine applies those. Counts are in tokens. The cut found here goes back to the engine (`engine/api.py`).
"""

import codecs

from paceline.text.tokenizer import Tokenizer


class TextStream:
    """`n` output tokens have been taken; once `stopped`, it stays at the token that completed the stop string."""

    def __init__(self, tokenizer: Tokenizer, stop: list[str]) -> None:
        self.n = 0
        self.stopped = False
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._matchers = [_Matcher(text) for text in stop]
        self._held = ""

    def push(self, ids: list[int]) -> str:
        """The text that may be sent now. Ids after the stop are ignored."""
        parts = []
        for token_id in ids:
            if self.stopped:
                break
            self.n += 1
            parts.append(self._take(self._utf8.decode(self._tokenizer.token_bytes(token_id))))
        return "".join(parts)

    def finish(self) -> str:
        """The text still held back when no more ids come: a half character becomes U+FFFD."""
        if self.stopped:
            return ""
        text = self._take(self._utf8.decode(b"", final=True))
        return text if self.stopped else text + self._held

    def _take(self, text: str) -> str:
        """Everything up to the stop string that is completed first; of several at one character, the longest."""
        if not self._matchers:
            return text
        pending = self._held + text
        for index, char in enumerate(text, start=len(self._held) + 1):
            complete = [len(m.text) for m in self._matchers if m.step(char)]
            if complete:
                self.stopped = True
                return pending[: index - max(complete)]
        safe = len(pending) - max(m.matched for m in self._matchers)
        self._held = pending[safe:]
        return pending[:safe]


class _Matcher:
    """Follows one stop string through a text; `matched` characters of it end the text so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._shorter = [0] * (len(text) + 1)  # [matched] → the next shorter prefix that also ends there
        for i in range(1, len(text)):
            self._shorter[i + 1] = self._extend(self._shorter[i], text[i])

    def step(self, char: str) -> bool:
        """True when the whole stop string ends with `char`."""
        self.matched = self._extend(self.matched, char)
        return self.matched == len(self.text)

    def _extend(self, matched: int, char: str) -> int:
        while matched and (matched == len(self.text) or self.text[matched] != char):
            matched = self._shorter[matched]
        return matched + (self.text[matched] == char)
