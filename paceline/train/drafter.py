"""A DFlash or DFlash2 drafter for a published model: prompts → target → answers → training → eval → export.

The target answers the prompts itself, then a drafter learns to foresee these answers. Every stage leaves its result in the
output folder, so that stages can run on different machines; the finished drafter is <out>/drafter.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
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
from paceline.train.files import write_json
from paceline.train.generate import generate
from paceline.train.loop import Log, LoopSettings
from paceline.train.recipes.dflash import DrafterRecipe, train_drafter
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
    """The stages over one output folder; `results` (summary.json) holds what each of them reported."""

    def __init__(self, out: Path, plan: DrafterPlan, device: torch.device) -> None:
        self.out, self.plan, self.device = out, plan, device
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        out.mkdir(parents=True, exist_ok=True)
        self.log = Log(out / "log.jsonl")
        summary = out / "summary.json"
        self.results: dict[str, dict[str, object]] = json.loads(summary.read_text()) if summary.exists() else {}

    def done(self, stage: str, **result: object) -> None:
        self.results[stage] = result
        write_json(self.out / "summary.json", self.results)
        self.log(stage=stage, done=True, **result)

    def prompts(self, folder: Path, encode: Encode) -> None:
        plan = self.plan
        longest = plan.row_tokens - plan.answers.new_tokens
        training, kept = prompts.split(plan.own_prompts, plan.data, plan.eval_prompts, encode, longest)
        content = {"training": training, "held_out": kept, "mask_id": _mask_id(folder)}
        (self.out / "prompts.json").write_text(json.dumps(content), encoding="utf-8")
        self.done("prompts", training=len(training), held_out={kind: len(found) for kind, found in kept.items()})

    def _prompts(self) -> dict[str, object]:
        content: dict[str, object] = json.loads((self.out / "prompts.json").read_text(encoding="utf-8"))
        return content

    def target(self, source: Path) -> None:
        target = frozen.read_target(open_checkpoint(source))
        frozen.save_target(target, self.out)
        self.done("target", parameters=parameters(target))

    def load_target(self) -> Target:
        return frozen.load_target(self.out, self.device, self.dtype)

    def answers(self) -> None:
        training: list[list[int]] = self._prompts()["training"]  # type: ignore[assignment]
        rows, made = answer_rows(self.load_target(), [training], self.plan.row_tokens, self.plan.answers)
        np.save(self.out / "answers.npy", rows)
        self.done("answers", rows=len(rows), **made)

    def _config(self, target: Target) -> BlockConfig:
        return block_config(target.config, self.plan, int(self._prompts()["mask_id"]))  # type: ignore[call-overload]

    def train(self) -> None:
        target, plan = self.load_target(), self.plan
        recipe = DrafterRecipe(plan.loop, self._config(target), DrafterLoss(plan.anchors), plan.rows)
        rows = np.load(self.out / "answers.npy")
        drafter, outcome = train_drafter(plan.kind, recipe, target, rows, self.out, self.log)
        save_module(drafter, self.out / "drafter.safetensors")
        self.done(
            "train",
            kind=plan.kind,
            parameters=parameters(drafter),
            steps=outcome.steps,
            tokens=outcome.steps * plan.rows * plan.row_tokens,
            seconds=round(outcome.seconds, 1),
            loss=round(outcome.loss, 4),
            **outcome.figures,
        )

    def load_drafter(self, target: Target) -> BlockDrafter:
        drafter = BlockDrafter(self._config(target))
        load_module(drafter, self.out / "drafter.safetensors")
        return drafter.to(self.device).eval()

    def eval(self) -> None:
        """Acceptance at temperature 0 on the target's own replies to the held-out prompts."""
        target, kept = self.load_target(), self._prompts()["held_out"]
        assert isinstance(kept, dict)
        replies = {}
        for kind, asked in kept.items():
            answers = generate(target, asked, self.plan.eval_tokens, torch.zeros(len(asked), device=self.device))
            replies[kind] = [evaluate.Reply(p, a) for p, a in zip(asked, answers, strict=True)]
        found = evaluate.acceptance(target, replies, evaluate.block_right(target, self.load_drafter(target)))
        self.done("eval", **found)

    def export(self) -> None:
        target = self.load_target()
        config, folder, found = self._config(target), self.out / "drafter", self.results.get("eval", {}).get("pooled")
        k = config.block - 1
        share = {str(k): round((found["tokens_per_round"] - 1) / k, 3)} if isinstance(found, dict) else {}
        export_drafter(self.load_drafter(target), config, folder, share)
        self.done("export", bytes=sum(file.stat().st_size for file in folder.iterdir()))

    def stages(self, source: Path, encode: Encode) -> dict[str, Callable[[], None]]:
        """`source` is the checkpoint; `encode` makes one user turn into a prompt's token ids by the model's chat template."""
        return {
            "prompts": lambda: self.prompts(prepare(source), encode),
            "target": lambda: self.target(source),
            "answers": self.answers,
            "train": self.train,
            "eval": self.eval,
            "export": self.export,
        }


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
