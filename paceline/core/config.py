"""The engine's configuration, resolved once by `build.py` and written whole into the log's `server_start` line.

Every value is final: nothing downstream asks for "auto" again.
"""

from typing import Literal

import msgspec

PAGE_TOKENS = 64
MAX_DRAFT_TOKENS = 15
MAX_STATE_CHECKPOINTS = 1024


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine runs. Lengths are in tokens.

    `model_folder` is the prepared folder (config, tokenizer, template, weights) that both processes read.
    `drafter_path` is the checkpoint folder of a drafter that has one of its own.
    `sampled_vocab`: only ids below it are sampled, since a head can have more rows than the tokenizer has tokens; 0 = all.
    `admission` "reserve" takes all pages that a request may ever need when it takes a slot, "on-demand" as it grows.
    `state_checkpoints` are the places for copies of a slot's state, from which prefixes and paused requests go on.
    `shortlist` holds the ids, ascending, that a model drafter chooses from; empty means every id that is sampled.
    `kv_capacity` is rounded up to whole pages. `prefill_chunk` is a multiple of 64: the most prompt tokens per step.
    """

    model_folder: str
    model_name: str
    weights_file: str
    device: str
    weights: str
    drafter: str
    draft_tokens: int
    max_concurrency: int
    max_context: int
    kv_capacity: int
    kv_dtype: str
    prefill_chunk: int
    threads: int
    drafter_path: str | None = None
    admission: Literal["on-demand", "reserve"] = "on-demand"
    prefix_cache: bool = True
    state_checkpoints: int = 0
    sampled_vocab: int = 0
    shortlist: tuple[int, ...] = ()
    log_stats_interval_s: float = 5.0

    @property
    def pages(self) -> int:
        return -(-self.kv_capacity // PAGE_TOKENS)

    @property
    def draft_head(self) -> str:
        """As `--draft-head` takes it, with the number of tokens."""
        return f"shortlist:{len(self.shortlist)}" if self.shortlist else "full"

    def most_tokens(self, prompt_tokens: int, max_tokens: int) -> int:
        """What a request may ever hold: all it may write, and one whole window more."""
        return min(prompt_tokens + max_tokens, self.max_context) + self.draft_tokens + 1

    def held_tokens(self, facts: int, prompt_tokens: int, max_tokens: int) -> int:
        """What a request with `facts` tokens holds: room for two more windows, that of this round and the drafts that follow
        it, or all that it may ever hold."""
        most = self.most_tokens(prompt_tokens, max_tokens)
        return most if self.admission == "reserve" else min(facts + 2 * (self.draft_tokens + 1), most)
