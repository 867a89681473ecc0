"""A DFlash or DFlash2 drafter for a published model: prompts → target → answers → training → eval → export.

The target answers the prompts itself, then a drafter learns to foresee these answers. Every stage leaves its result in the
output folder (`stages.py`), so that stages can run on different machines; the finished drafter is <out>/drafter.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from paceline.checkpoint.base import open_checkpoint
from paceline.checkpoint.prepare import prepare
from paceline.core.errors import CheckpointError
from paceline.train import evaluate, frozen, prompts
from paceline.train.answers import AnswerSettings, answer_rows
from paceline.train.block import BlockConfig, BlockDrafter
from paceline.train.drafter_loss import DrafterLoss
from paceline.train.export import export_drafter, load_module, parameters, save_module
from paceline.train.generate import generate
from paceline.train.loop import LoopSettings
from paceline.train.recipes.dflash import DrafterRecipe, train_drafter
from paceline.train.stages import Report, Runner, Stage
from paceline.train.target import Target, TargetConfig

KINDS = ("dflash", "dflash2")
Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class DrafterPlan:
    """What to build. `own_prompts` are generated beside those of the folder `data`; lengths in tokens."""

    kind: str = "dflash2"
    layers: int = 3
    block: int = 8
    own_prompts: int = 15000
    data: Path | None = None
    row_tokens: int = 1024
    rows: int = 16
    anchors: int = 96
    answers: AnswerSettings = AnswerSettings(0.75, greedy=0.6)  # noqa: RUF009 – frozen
    loop: LoopSettings = LoopSettings(2.0)  # noqa: RUF009 – frozen
    eval_prompts: int = 24
    eval_tokens: int = 160


def block_config(target: TargetConfig, plan: DrafterPlan, mask_id: int) -> BlockConfig:
    """A small drafter beside its target: the target's width and heads, a narrow MLP, taps spread over its depth."""
    return BlockConfig(
        hidden=target.hidden,
        vocab=target.vocab,
        target_layers=target.layers,
        layers=plan.layers,
        ffn=-(-16 * target.hidden // (9 * 64)) * 64,
        heads=target.heads,
        kv_heads=target.kv_heads,
        head_dim=target.head_dim,
        taps=default_taps(target.layers),
        block=plan.block,
        mask_id=mask_id,
        max_context=target.max_context,
        eps=target.eps,
        dynamic=plan.kind == "dflash2",
        rank=32,
    )


def default_taps(layers: int) -> tuple[int, ...]:
    """Five blocks (fewer of a shallow target) at equal distances, from the second to the third last."""
    count = min(5, layers - 3)
    return tuple(round(1 + i * (layers - 4) / (count - 1)) for i in range(count)) if count > 1 else (layers // 2,)


class DrafterBuild:
    """The stages of one drafter over a runner's folder. `source` is the checkpoint; `encode` makes one user turn into a
    prompt's token ids by the model's chat template."""

    def __init__(self, runner: Runner, plan: DrafterPlan, device: torch.device, source: Path, encode: Encode) -> None:
        self.runner, self.plan, self.device, self.source, self.encode = runner, plan, device, source, encode
        self.out, self.log = runner.folder, runner.log
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    def run(self, wanted: Iterable[str] | None = None) -> None:
        self.runner.run(self.stages(), self.device, wanted)

    def stages(self) -> list[Stage]:
        plan = self.plan
        # Names, not paths: another machine, where a later stage runs, has them elsewhere or not at all.
        source = {"source": self.source.name}
        asked = {"own": plan.own_prompts, "data": plan.data.name if plan.data else None, "held_out": plan.eval_prompts}
        longest = {"longest": plan.row_tokens - plan.answers.new_tokens}
        shapes = {"kind": plan.kind, "layers": plan.layers, "block": plan.block}
        budget = {"rows": plan.rows, "anchors": plan.anchors, "loop": asdict(plan.loop)}
        exported = ("drafter/config.json", "drafter/model.safetensors")
        return [
            Stage("prompts", self.prompts, source | asked | longest, ("prompts.json",)),
            Stage("target", self.target, source, frozen.FILES),
            Stage("answers", self.answers, asdict(plan.answers) | longest, ("answers.npy",), ("prompts", "target")),
            Stage(
                "train", self.train, shapes | budget, ("drafter.safetensors",), ("prompts", "target", "answers"), True
            ),
            Stage("eval", self.eval, {"tokens": plan.eval_tokens}, (), ("prompts", "target", "train")),
            Stage("export", self.export, {}, exported, ("target", "train", "eval")),
        ]

    def prompts(self) -> Report:
        plan = self.plan
        longest = plan.row_tokens - plan.answers.new_tokens
        training, kept = prompts.split(plan.own_prompts, plan.data, plan.eval_prompts, self.encode, longest)
        content = {"training": training, "held_out": kept, "mask_id": _mask_id(prepare(self.source))}
        (self.out / "prompts.json").write_text(json.dumps(content), encoding="utf-8")
        return {"training": len(training), "held_out": {kind: len(found) for kind, found in kept.items()}}

    def _prompts(self) -> dict[str, object]:
        content: dict[str, object] = json.loads((self.out / "prompts.json").read_text(encoding="utf-8"))
        return content

    def target(self) -> Report:
        target = frozen.read_target(open_checkpoint(self.source))
        frozen.save_target(target, self.out)
        return {"parameters": parameters(target)}

    def load_target(self) -> Target:
        return frozen.load_target(self.out, self.device, self.dtype)

    def answers(self) -> Report:
        training: list[list[int]] = self._prompts()["training"]  # type: ignore[assignment]
        rows, made = answer_rows(self.load_target(), [training], self.plan.row_tokens, self.plan.answers)
        np.save(self.out / "answers.npy", rows)
        return {"rows": len(rows), **made}

    def _config(self, target: Target) -> BlockConfig:
        return block_config(target.config, self.plan, int(self._prompts()["mask_id"]))  # type: ignore[call-overload]

    def train(self) -> Report:
        target, plan = self.load_target(), self.plan
        recipe = DrafterRecipe(plan.loop, self._config(target), DrafterLoss(plan.anchors), plan.rows)
        rows = np.load(self.out / "answers.npy")
        drafter, outcome = train_drafter("train", recipe, target, rows, self.out, self.log)
        save_module(drafter, self.out / "drafter.safetensors")
        return {
            "kind": plan.kind,
            "parameters": parameters(drafter),
            "steps": outcome.steps,
            "tokens": outcome.steps * plan.rows * plan.row_tokens,
            "seconds": round(outcome.seconds, 1),
            "loss": round(outcome.loss, 4),
            **outcome.figures,
        }

    def load_drafter(self, target: Target) -> BlockDrafter:
        drafter = BlockDrafter(self._config(target))
        load_module(drafter, self.out / "drafter.safetensors")
        return drafter.to(self.device).eval()

    def eval(self) -> Report:
        """Acceptance at temperature 0 on the target's own replies to the held-out prompts."""
        target, kept = self.load_target(), self._prompts()["held_out"]
        assert isinstance(kept, dict)
        replies = {}
        for kind, asked in kept.items():
            answers = generate(target, asked, self.plan.eval_tokens, torch.zeros(len(asked), device=self.device))
            replies[kind] = [evaluate.Reply(p, a) for p, a in zip(asked, answers, strict=True)]
        found = evaluate.acceptance(target, replies, evaluate.block_right(target, self.load_drafter(target)))
        return {self.plan.kind: found}

    def export(self) -> Report:
        target = self.load_target()
        config, folder, found = self._config(target), self.out / "drafter", self.runner.results["eval"][self.plan.kind]
        assert isinstance(found, dict)
        k = config.block - 1
        share = {str(k): round((found["pooled"]["tokens_per_round"] - 1) / k, 3)}
        export_drafter(self.load_drafter(target), config, folder, share)
        return {"bytes": sum(file.stat().st_size for file in folder.iterdir())}


def _mask_id(folder: Path) -> int:
    """The last special token that neither ends a reply nor stands in the chat template: no text ever holds it."""
    added = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    ends = json.loads((folder / "generation.json").read_text(encoding="utf-8"))["eos_ids"]
    template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    free = [
        token["id"]
        for token in added
        if token["special"] and token["content"] not in template and token["id"] not in ends
    ]
    if not free:
        fix = "a drafter's mask needs one that no text holds; add one to the tokenizer"
        raise CheckpointError(f"{folder.name}: tokenizer.json has no unused special token: {fix}")
    return int(max(free))
