"""What one request asks for, as the engine sees it: token ids and numbers, never text."""

from typing import Literal

import msgspec

FinishReason = Literal["stop_token", "stop_string", "output_limit", "context_capacity", "cancelled", "error"]
CancelCause = Literal["client_disconnect", "pending_timeout", "admin", "shutdown", "slow_reader"]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is drawn. The order of application is penalties, bias, temperature, top-k, then top-p and min-p.

    temperature 0 means greedy. top_k 0, top_p 1 and min_p 0 switch that filter off. `seed` is always set: one that
    the client omitted was drawn before. Presence and frequency count generated tokens; repetition also the prompt.
    """

    seed: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted request. Lengths are in tokens.

    `max_tokens` is the output limit; the context end may come first. A token of `stop_ids` ends the output and is
    counted, but no text is made from it; before `min_tokens` outputs the stop ids cannot be sampled. `boundaries` are the
    prompt positions at which messages begin: a later request is likely to share the prompt up to one of them. Only requests
    of equal `salt` share anything.
    """

    id: int
    prompt: list[int]
    max_tokens: int
    sampling: SamplingParams
    min_tokens: int = 0
    stop_ids: list[int] = []
    boundaries: list[int] = []
    salt: bytes = b""
