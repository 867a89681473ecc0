"""How many of a drafter's drafts a model accepts, on prompts that come with the package. For `doctor`; no server.

Greedy, with the model's own chat template, on the five workloads that `bench` sends. Replies do not depend on the drafter,
so two drafters of one model are measured on the same text. Counts are of drafts and rounds.
"""

from itertools import chain

import msgspec

from paceline.build import Stated, local_engine, open_text
from paceline.core.config import EngineConfig
from paceline.core.messages import Event, Finished, Tokens
from paceline.core.request import Request, SamplingParams
from paceline.measure.fixtures import WORKLOADS, load_workloads

# One prompt of every workload at once; a drafter that drafts badly is known long before the prompts end.
CONCURRENCY = len(WORKLOADS)
CONTEXT_TOKENS = 1024
ENOUGH_DRAFTS = 2000
_REPLY_TOKENS = 96
# Of the stated acceptance. A block off by one target layer loses half of it; the prompts here cost up to a third.
_LOW_SHARE = 0.65
# Drafters that state nothing: one that works gives at least a third of a token per round, also on text it does not know.
_DEAD_PER_ROUND = 0.2


class Measured(msgspec.Struct, frozen=True):
    """`accepted` of `proposed` drafts in `rounds` windows, and what the drafter's card states for this draft length."""

    rounds: int
    proposed: int
    accepted: int
    stated: Stated

    @property
    def share(self) -> float:
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def dead(self) -> bool:
        """Too little for any text: the drafter is broken, or was made for something else."""
        if self.stated.k is None:
            return self.accepted <= _DEAD_PER_ROUND * self.rounds
        return self.stated.is_dead(self.share)

    @property
    def low(self) -> bool:
        return self.share < _LOW_SHARE * self.stated.share


def measure_acceptance(config: EngineConfig) -> Measured:
    """Loads the model and its drafter, and runs the prompts until they end or ENOUGH_DRAFTS were proposed."""
    tokenizer, template, _ = open_text(config)
    rounds = proposed = accepted = 0

    def take(event: Event) -> None:
        nonlocal rounds, proposed, accepted
        if isinstance(event, Tokens) and event.proposed:
            rounds += 1
            proposed += event.proposed
            accepted += event.accepted
        elif isinstance(event, Finished):
            assert event.error is None, event.error

    engine = local_engine(config, take)
    mixed = chain.from_iterable(zip(*(workload.fixtures for workload in load_workloads()), strict=True))
    for index, fixture in enumerate(mixed):
        text = template.render([{"role": "user", "content": fixture.prompt}], {})
        engine.submit(
            Request(
                id=index,
                prompt=tokenizer.encode(text),
                max_tokens=_REPLY_TOKENS,
                sampling=SamplingParams(seed=1, temperature=0.0),
                stop_ids=tokenizer.generation.eos_ids,
            )
        )
    while engine.busy and proposed < ENOUGH_DRAFTS:
        engine.step()
    stated = Stated.nearest(engine.facts.get("expected_acceptance"), config.draft_tokens)
    return Measured(rounds, proposed, accepted, stated)
