"""A drafter's state depends on the accepted tokens alone, and the runner hands over exactly the target's features."""

from pathlib import Path

import pytest
import torch

from paceline.core.request import Request
from paceline.core.spec import DrafterSpec
from paceline.drafters import dflash, dflash2, mtp
from paceline.drafters.base import Drafter, Observed, Target, Want
from paceline.models import MODELS
from paceline.runner.drafter import CheckpointSource
from tests.drafters.play import make_target, make_truth, play
from tests.kit import drafter_files, models
from tests.kit.drafters import ScriptedDrafter
from tests.kit.run import load, run, sampling

HYBRID = models.hybrid_config()
SPEC = MODELS.get("qwen3_5_text").spec(HYBRID.to_dict(), "hybrid")


@pytest.mark.parametrize("kind", ["mtp", "v1", "v2"])
def test_any_accepted_counts_leave_the_state_of_the_facts(kind: str, tmp_path: Path) -> None:
    k = 7
    drafter_files.write_block_folder(tmp_path, drafter_files.block_config(kind == "v2"))

    def fresh() -> Drafter:
        target = make_target(SPEC, k)
        if kind == "mtp":
            shapes = drafter_files.mtp_shapes(HYBRID)
            return mtp.MtpDrafter(target, drafter_files.random_tensors(shapes, offset=True))
        return (dflash2 if kind == "v2" else dflash).build(target, CheckpointSource(tmp_path))

    truth = make_truth(160, 2)
    expected, _, end = play(fresh(), 2, truth, 100, 300, [], k)
    for accepted in ([0] * 10, [7, 0], [1, 1, 1, 1, 1], [3, 0, 0, 3], [4, 4]):
        prompt = 100 - sum(n + 1 for n in accepted)
        got, _, at = play(fresh(), 2, truth, prompt, 37, accepted, k)
        assert at == end
        for (a, _), (b, _) in zip(got.seen, expected.seen, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


class Recorder:
    """Asks for features and checks nothing; its drafts are right at every second position."""

    def __init__(self, inner: ScriptedDrafter, taps: tuple[int, ...]) -> None:
        self.inner, self.rows = inner, []
        self.spec = DrafterSpec(taps=taps, hidden=True)
        self.open, self.close = inner.open, inner.close

    def observe(self, rows: list[Observed]) -> None:
        self.rows += rows
        self.inner.observe(rows)

    def propose(self, rows: list[Want]) -> list[list[int]]:
        assert all(self.inner.seen[row.slot][-1] == row.anchor for row in rows)
        assert all(len(self.inner.seen[row.slot]) - 1 == row.position for row in rows)
        return self.inner.propose(rows)


@pytest.mark.parametrize("family", ["hybrid", "llama"])
def test_features_are_the_targets(family: str, tmp_path: Path) -> None:
    """Taps are the residual stream after the block, before the final norm – of the last block too; `hidden` is after it."""
    config = models.hybrid_config() if family == "hybrid" else models.dense_config("llama", layers=3)
    oracle = models.build(config)
    model = load(models.save(oracle, tmp_path / family), "fp32")
    last = config.num_hidden_layers - 1
    residual: dict[int, torch.Tensor] = {}
    for i, layer in enumerate(oracle.model.layers):
        layer.register_forward_hook(
            lambda _, __, out, i=i: residual.update({i: (out[0] if isinstance(out, tuple) else out)})
        )
    prompts = [torch.randint(1, 40, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (1, 9, 130)]
    work = [Request(id=i, prompt=p, max_tokens=12, sampling=sampling()) for i, p in enumerate(prompts)]
    answers = {tuple(r.prompt): reply.ids for r, reply in zip(work, run(model, work), strict=True)}
    made: list[Recorder] = []

    def recorder(target: Target) -> Recorder:
        made.append(Recorder(ScriptedDrafter(answers, "half", target.vocab), (last, 0)))
        return made[0]

    for request in work:
        made.clear()
        run(model, [request], recorder, draft_tokens=3, prefill_chunk=64)
        whole = [*request.prompt, *answers[tuple(request.prompt)]]
        with torch.no_grad():
            final = oracle.model(torch.tensor([whole])).last_hidden_state[0]
        wanted = torch.cat([residual[last][0], residual[0][0]], 1)
        at = 0
        for row in made[0].rows:
            n = row.taps.shape[0]
            assert row.start == at and row.tokens == whole[row.first_token : row.first_token + len(row.tokens)]
            torch.testing.assert_close(row.taps, wanted[at : at + n], rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(row.hidden, final[at : at + n], rtol=1e-3, atol=1e-3)
            at += n
        assert at == len(whole) - 1
