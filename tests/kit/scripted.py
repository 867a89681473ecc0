"""A backend without a model: it emits scripted tokens, and checks that the engine keeps the protocol.

Everything that `core/backend.py` and `core/batch.py` demand of the scheduler's side is asserted on each step, so a test
that runs the engine over it needs no such checks of its own. The script travels as JSON in `EngineConfig.weights_file`
(the "weights" of this backend), hence also into a child process: the factory is `FACTORY`. Lengths in tokens.
"""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from paceline.core.batch import Batch, Opened, Row, RowOut, StepOut
from paceline.core.config import MAX_DRAFT_TOKENS, PAGE_TOKENS, EngineConfig
from paceline.core.errors import EngineError
from paceline.core.request import FinishReason, Request

FACTORY = "tests.kit.scripted:make_backend"
ALL_AT_ONCE = 0


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """How one incarnation of the engine fares. `die_after` steps it exits, raises, or hangs; None: never."""

    start_error: str = ""
    die_after: int | None = None
    die_how: Literal["exit", "raise", "hang"] = "exit"


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """What the backend emits, and how.

    A window emits up to `run` tokens (ALL_AT_ONCE: every draft is right). `drafts` is what the drafter has ready after
    each emission of a request, cyclically; empty: always the configured draft_tokens. `replies` maps a prompt to the
    tokens that follow it; after them comes the request's first stop id if it has one. Other prompts, and what follows a
    reply without stop ids, get `default_token`. `lives` of successive incarnations, the last one for all later ones, are
    counted in the file `lives_file`; without a file every incarnation has the first life, without lives none dies.
    """

    run: int = ALL_AT_ONCE
    drafts: list[int] = []
    replies: list[tuple[list[int], list[int]]] = []
    vocab: int = 1000
    stateful: bool = True
    step_delay_s: float = 0.0
    lives: list[Life] = []
    lives_file: str = ""


class ProtocolError(AssertionError):
    """The engine broke the Backend protocol."""


def make_backend(config: EngineConfig) -> "ScriptedBackend":
    return ScriptedBackend(config)


def engine_config(script: Script | None = None, /, **overrides: object) -> EngineConfig:
    """A small engine; `overrides` are fields of EngineConfig."""
    base = EngineConfig(
        model_folder="", model_name="scripted", weights_file=msgspec.json.encode(script or Script()).decode(), device="none",
        weights="none", drafter="scripted", draft_tokens=3, max_concurrency=2, max_context=1024, kv_capacity=4096,
        kv_dtype="none", prefill_chunk=256, threads=1,
    )  # fmt: skip
    return msgspec.structs.replace(base, **overrides)


def default_token(prompt: list[int], index: int, vocab: int) -> int:
    """The `index`-th output token after `prompt` when no reply was scripted: arbitrary, but always the same."""
    return (sum(prompt) * 31 + len(prompt) * 17 + index * 7 + index * index) % vocab


@dataclass(slots=True)
class _Slot:
    """`filled` tokens are in the pages; of the output all but the last belong there before the next window."""

    request: Request
    reply: list[int]
    output: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    filled: int = 0
    produced: int = 0
    emissions: int = 0
    next_drafts: int = 0
    finished: bool = False


class ScriptedBackend:
    """See the file's docstring. `steps` counts the steps, `batches` keeps them for tests in the same process."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._script = msgspec.json.decode(config.weights_file or "{}", type=Script)
        self._replies = {tuple(prompt): reply for prompt, reply in self._script.replies}
        self._life = _next_life(self._script)
        if self._life.start_error:
            raise EngineError(self._life.start_error)
        self._slots: dict[int, _Slot] = {}
        self._closed = False
        self._pages: dict[int, list[int]] = {}
        self._checkpoints: dict[int, list[int]] = {}
        self.steps = 0
        self.batches: list[Batch] = []

    def facts(self) -> dict[str, object]:
        return {"backend": "scripted", "pid": os.getpid()}

    def step(self, batch: Batch) -> StepOut:
        started = time.perf_counter()
        self._die_if_due()
        self.steps += 1
        self.batches.append(batch)
        self._check_batch(batch)
        if self._script.step_delay_s:
            time.sleep(self._script.step_delay_s)
        rows = [self._run_row(row) for row in batch.rows]
        return StepOut(rows, time.perf_counter() - started)

    @property
    def stateful(self) -> bool:
        return self._script.stateful

    def save(self, slot: int, checkpoint: int) -> None:
        _demand(slot in self._slots, f"slot {slot} is saved but not open")
        _demand(0 <= checkpoint < self._config.state_checkpoints, f"checkpoint {checkpoint} does not exist")
        state = self._slots[slot]
        self._checkpoints[checkpoint] = (state.request.prompt + state.output)[: state.filled]

    def close_slot(self, slot: int) -> None:
        _demand(slot in self._slots, f"slot {slot} is closed but not open")
        del self._slots[slot]

    def close(self) -> None:
        _demand(not self._closed, "the backend is closed twice")
        _demand(not self._slots, f"the backend is closed with open slots {list(self._slots)}")
        self._closed = True

    def check(self) -> None:
        """Raises unless every slot was closed."""
        _demand(not self._slots, f"slots left open: {list(self._slots)}")

    def _die_if_due(self) -> None:
        if self._life.die_after is None or self.steps < self._life.die_after:
            return
        match self._life.die_how:
            case "exit":
                os._exit(3)
            case "raise":
                raise RuntimeError("scripted\ndeath")
            case "hang":
                time.sleep(3600)

    def _check_batch(self, batch: Batch) -> None:
        config = self._config
        _demand(not self._closed, "a step after close")
        _demand(bool(batch.rows), "a step without rows")
        for opened in batch.opened:
            self._open(opened)
        slots = [row.slot for row in batch.rows]
        _demand(len(set(slots)) == len(slots), f"a slot has two rows: {slots}")
        chunk_tokens = sum(len(row.tokens or ()) for row in batch.rows)
        _demand(chunk_tokens <= config.prefill_chunk, f"{chunk_tokens} prompt tokens in one step")
        for row in batch.rows:
            _demand(row.slot in self._slots, f"slot {row.slot} has a row before it was opened")
            self._check_row(row, self._slots[row.slot])
        for row in batch.rows:
            self._write_pages(row)

    def _open(self, opened: Opened) -> None:
        slot, request, filled = opened.slot, opened.request, opened.filled
        _demand(0 <= slot < self._config.max_concurrency, f"slot {slot} does not exist")
        _demand(slot not in self._slots, f"slot {slot} is opened while open")
        known = request.prompt + opened.output
        _demand(0 <= filled < len(known), f"{opened}: its last token is not to be computed again")
        if self._script.stateful and filled:
            _demand(opened.restore is not None, f"{opened}: no state to go on from")
        if opened.restore is not None:
            _demand(self._checkpoints.get(opened.restore) == known[:filled], f"{opened}: a state of other tokens")
        if opened.copy is not None:
            source, target = opened.copy
            self._pages[target] = list(self._pages.get(source, []))
        reply = self._replies.get(tuple(request.prompt), [])
        self._slots[slot] = _Slot(request, reply, list(opened.output), [], filled, len(opened.output))

    def _write_pages(self, row: Row) -> None:
        """What is in the pages before a row must be the sequence's tokens; what the row computes is written behind it."""
        slot = self._slots[row.slot]
        known = slot.request.prompt + slot.output
        for at in range(0, row.start, PAGE_TOKENS):
            held = self._pages.get(row.pages[at // PAGE_TOKENS], [])
            end = min(row.start, at + PAGE_TOKENS)
            _demand(held[: end - at] == known[at:end], f"{row}: page {row.pages[at // PAGE_TOKENS]} holds other tokens")
        drafts = [-1] * (row.q_len - row.known)
        for at, token in enumerate([*known[row.start : row.start + row.known], *drafts], row.start):
            page = row.pages[at // PAGE_TOKENS]
            for other, state in self._slots.items():
                shared = page in state.pages and at < state.filled and other != row.slot
                _demand(not shared, f"{row}: writes into page {page}, which slot {other} reads")
            self._put(page, at, token)

    def _put(self, page: int, at: int, token: int) -> None:
        self._pages[page] = [*self._pages.get(page, [])[: at % PAGE_TOKENS], token]

    def _check_row(self, row: Row, slot: _Slot) -> None:
        prompt = slot.request.prompt
        _demand(not slot.finished, f"{row}: its request has finished")
        _demand(1 <= row.known <= row.q_len and 0 <= row.sample_from <= row.q_len, f"{row}: lengths")
        end = row.start + row.q_len
        _demand(end <= self._config.max_context, f"{row}: past the context")
        _demand(len(row.pages) * PAGE_TOKENS >= end, f"{row}: pages do not cover its positions")
        _demand(len(set(row.pages)) == len(row.pages), f"{row}: a page twice")
        _demand(all(0 <= page < self._config.pages for page in row.pages), f"{row}: a page that does not exist")
        _demand(row.pages[: len(slot.pages)] == slot.pages, f"{row}: pages moved from {slot.pages}")
        slot.pages = list(row.pages)
        _demand(row.start == slot.filled, f"{row}: position {slot.filled} comes next")
        if row.tokens is None:
            _demand(row.start == len(prompt) + slot.produced - 1, f"{row}: a window away from the anchor")
            _demand(row.known == 1 and row.sample_from == 0, f"{row}: not a window")
            drafts = row.q_len - 1
            _demand(drafts <= slot.next_drafts, f"{row}: more drafts than the {slot.next_drafts} there are")
            left = slot.request.max_tokens - slot.produced
            _demand(drafts < left, f"{row}: drafts past the output limit")
            wanted = min(slot.next_drafts, left - 1, self._config.max_context - row.start - 1)
            _demand(drafts == wanted, f"{row}: only {drafts} of {wanted} drafts are used")
            return
        _demand(row.tokens == (prompt + slot.output)[row.start : end], f"{row}: not the sequence's tokens")
        _demand(row.known == row.q_len == len(row.tokens), f"{row}: a chunk is known as a whole")
        _demand(end <= len(prompt) or row.start >= len(prompt), f"{row}: prompt and output in one chunk")
        _demand(end <= len(prompt) or row.q_len <= MAX_DRAFT_TOKENS + 1, f"{row}: output in another form than a window")
        _demand(end >= len(prompt) or end % PAGE_TOKENS == 0, f"{row}: ends inside a page")
        last = end == len(prompt) and not slot.output
        _demand(row.sample_from == (row.q_len - 1 if last else row.q_len), f"{row}: sample_from")

    def _run_row(self, row: Row) -> RowOut:
        slot = self._slots[row.slot]
        slot.filled += len(row.tokens or ())
        if row.sample_from == row.q_len:
            return RowOut([], 0, 0, None, 0)
        drafts = row.q_len - row.known
        emitted = min(drafts + 1, self._script.run or drafts + 1)
        ids, finish = self._emit(slot, emitted)
        slot.output += ids
        slot.filled = len(slot.request.prompt) + slot.produced - 1
        for at in range(row.start + row.known, slot.filled):  # accepted drafts stay
            self._put(row.pages[at // PAGE_TOKENS], at, slot.output[at - len(slot.request.prompt)])
        slot.finished = finish is not None
        slot.next_drafts = self._drafts(slot)
        return RowOut(ids, drafts, min(emitted - 1, len(ids)), finish, slot.next_drafts)

    def _emit(self, slot: _Slot, n: int) -> tuple[list[int], FinishReason | None]:
        """Up to n more tokens, clipped where the output ends."""
        request = slot.request
        ids: list[int] = []
        while len(ids) < n:
            token = self._token(slot, slot.produced)
            ids.append(token)
            slot.produced += 1
            if token in request.stop_ids and slot.produced > request.min_tokens:
                return ids, "stop_token"
            if slot.produced >= request.max_tokens:
                return ids, "output_limit"
            if len(request.prompt) + slot.produced >= self._config.max_context:
                return ids, "context_capacity"
        return ids, None

    def _token(self, slot: _Slot, index: int) -> int:
        if index < len(slot.reply):
            return slot.reply[index]
        if slot.reply and slot.request.stop_ids:
            return slot.request.stop_ids[0]
        return default_token(slot.request.prompt, index, self._script.vocab)

    def _drafts(self, slot: _Slot) -> int:
        cycle = self._script.drafts or [self._config.draft_tokens]
        slot.emissions += 1
        return min(cycle[(slot.emissions - 1) % len(cycle)], self._config.draft_tokens)


def _next_life(script: Script) -> Life:
    if not script.lives:
        return Life()
    if not script.lives_file:
        return script.lives[0]
    with Path(script.lives_file).open("a+") as file:
        file.write(".")
        incarnation = file.tell()
    return script.lives[min(incarnation, len(script.lives)) - 1]


def _demand(condition: bool, message: str) -> None:
    if not condition:
        raise ProtocolError(message)
