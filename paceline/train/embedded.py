"""Builds the embedded model: corpus → tokenizer → target → answers → mtp → dflash → dflash2 → eval → export.

`paceline train embedded --out DIR` runs this. Every stage leaves its result in the folder; a later call goes on from there
(`stages.py`). The toy plan is the size of the tests. The finished model is DIR/embedded.
"""

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer

from paceline.train import corpus, evaluate
from paceline.train.answers import AnswerSettings, answer_rows, lots_of
from paceline.train.block import BlockConfig, BlockDrafter
from paceline.train.bpe import TOKENIZER_FILES, save_tokenizer, train_tokenizer
from paceline.train.card import model_card
from paceline.train.chats import render
from paceline.train.corpus import CorpusSettings
from paceline.train.drafter_loss import DrafterLoss
from paceline.train.export import export_drafter, export_target, load_module, parameters, save_module
from paceline.train.files import write_json
from paceline.train.generate import generate
from paceline.train.loop import LoopSettings, Outcome
from paceline.train.mtp import MtpHead
from paceline.train.recipes.dflash import DrafterRecipe, train_drafter
from paceline.train.recipes.mtp import MtpRecipe, train_mtp
from paceline.train.recipes.target import TargetRecipe, train_target
from paceline.train.stages import Report, Runner, Stage
from paceline.train.target import Target, TargetConfig
from paceline.train.workloads import MAKERS

_DRAFTERS = ("dflash", "dflash2")
Settings = TypeVar("Settings", TargetRecipe, MtpRecipe, DrafterRecipe, CorpusSettings, AnswerSettings, LoopSettings)


@dataclass(frozen=True, slots=True)
class Plan:
    """All sizes and budgets of a build."""

    target: TargetRecipe
    mtp: MtpRecipe
    drafter: DrafterRecipe
    corpus: CorpusSettings
    answers: AnswerSettings
    tokenizer_chats: int = 40000
    eval_prompts: int = 48
    eval_tokens: int = 192
    head_drafts: int = 3

    def block(self, stage: str) -> BlockConfig:
        """The shapes of one of the two drafters."""
        return replace(self.drafter.config, dynamic=stage == "dflash2")


@dataclass(frozen=True, slots=True)
class Choices:
    """What a person may set; None leaves it to the plan. `rows` are the target's per step; drafters take half."""

    data: str | None = None
    minutes_target: float | None = None
    minutes_answers: float | None = None
    minutes_mtp: float | None = None
    minutes_drafter: float | None = None
    chats: int | None = None
    rows: int | None = None
    matrix_rate: float | None = None


def full_plan() -> Plan:
    return Plan(
        target=TargetRecipe(LoopSettings(7.0, matrix_rate=8e-3, rate=4e-3)),
        mtp=MtpRecipe(LoopSettings(2.0)),
        drafter=DrafterRecipe(LoopSettings(3.0)),
        corpus=CorpusSettings(1_000_000),
        answers=AnswerSettings(1.0),
    )


def toy_plan() -> Plan:
    """Seconds on one CPU core: shows that every stage runs, not that the model is any good."""
    config = TargetConfig(vocab=640, hidden=64, layers=4, ffn=96, heads=2, kv_heads=1, head_dim=32, rotary_dim=16, key_heads=1,
                          value_heads=2, key_dim=32, value_dim=32, max_context=512)  # fmt: skip
    block = BlockConfig(vocab=640, hidden=64, target_layers=4, ffn=96, heads=2, kv_heads=1, head_dim=32, taps=(1, 2, 3),
                        window=96, rank=16, max_context=512)  # fmt: skip
    loop = LoopSettings(5.0, max_steps=8, log_every=2, warmup_steps=4, save_every_s=0.0)
    return Plan(
        target=TargetRecipe(replace(loop, max_steps=16), config, rows=2),
        mtp=MtpRecipe(loop, rows=2, steps=3),
        drafter=DrafterRecipe(loop, block, DrafterLoss(anchors=8), rows=2),
        corpus=CorpusSettings(160, row_tokens=256),
        answers=AnswerSettings(0.5, new_tokens=16, batch_tokens=1 << 11),
        tokenizer_chats=150,
        eval_prompts=2,
        eval_tokens=16,
    )


def chosen(plan: Plan, c: Choices) -> Plan:
    """The plan with what a person set."""
    rates = {} if c.matrix_rate is None else {"matrix_rate": c.matrix_rate, "rate": c.matrix_rate / 2}
    half = None if c.rows is None else c.rows // 2
    return replace(
        plan,
        target=_with(plan.target, rows=c.rows, loop=_with(plan.target.loop, minutes=c.minutes_target, **rates)),
        mtp=_with(plan.mtp, rows=half, loop=_with(plan.mtp.loop, minutes=c.minutes_mtp)),
        drafter=_with(plan.drafter, rows=half, loop=_with(plan.drafter.loop, minutes=c.minutes_drafter)),
        corpus=_with(plan.corpus, data=c.data, chats=c.chats),
        answers=_with(plan.answers, minutes=c.minutes_answers),
    )


def _with(settings: Settings, **values: Any) -> Settings:
    """A copy with the values that are not None."""
    return replace(settings, **{name: value for name, value in values.items() if value is not None})


class Build:
    """The stages of the embedded model over a runner's folder."""

    def __init__(self, runner: Runner, plan: Plan, device: torch.device, processes: int) -> None:
        self.runner, self.plan, self.device, self.processes = runner, plan, device, processes
        self.out, self.log = runner.folder, runner.log
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    def run(self, wanted: Iterable[str] | None = None) -> None:
        # Masks change from batch to batch here, and that backend plans anew for every shape.
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.runner.run(self.stages(), self.device, wanted)

    def stages(self) -> list[Stage]:
        plan = self.plan
        words = {"chats": plan.tokenizer_chats, "seed": plan.corpus.seed}
        text = {"vocab": plan.target.config.vocab, "max_context": plan.target.config.max_context}
        sizes = {"prompts": plan.eval_prompts, "tokens": plan.eval_tokens, "head_drafts": plan.head_drafts}
        drafters = [
            Stage(
                name,
                partial(self.drafter, name),
                asdict(replace(plan.drafter, config=plan.block(name))),
                (f"{name}.safetensors",),
                ("target", "answers"),
                trains=True,
            )
            for name in _DRAFTERS
        ]
        spoken = tuple(f"embedded/{file}" for file in TOKENIZER_FILES)
        folders = ["embedded", *(f"embedded/drafters/{name}" for name in _DRAFTERS)]
        exported = [f"{folder}/{file}" for folder in folders for file in ("config.json", "model.safetensors")]
        exported += ["embedded/generation_config.json", "embedded/MODEL_CARD.md"]
        return [
            Stage("tokenizer", self.tokenizer, words | text, spoken),
            Stage("corpus", self.corpus, asdict(plan.corpus), ("rows.npy",), ("tokenizer",)),
            Stage("target", self.target, asdict(plan.target), ("target.safetensors",), ("corpus",), trains=True),
            Stage("answers", self.answers, asdict(plan.answers), ("answers.npy",), ("corpus", "target")),
            Stage("mtp", self.mtp, asdict(plan.mtp), ("mtp.safetensors",), ("target", "answers"), trains=True),
            *drafters,
            Stage("eval", self.eval, sizes, ("samples.json",), ("tokenizer", "target", "mtp", *_DRAFTERS)),
            Stage("export", self.export, {}, tuple(exported), ("tokenizer", "target", "mtp", *_DRAFTERS, "eval")),
        ]

    def tokenizer(self) -> Report:
        settings = replace(self.plan.corpus, chats=self.plan.tokenizer_chats)
        texts = (
            "".join(render(chat)) for batch in range(settings.batches) for chat in corpus.chats_of(settings, batch)
        )
        made = train_tokenizer(texts, self.plan.target.config.vocab)
        save_tokenizer(made, self.out / "embedded", self.plan.target.config.max_context)
        return {"vocab": made.get_vocab_size(), "chats": self.plan.tokenizer_chats}

    def corpus(self) -> Report:
        start = time.monotonic()
        rows = corpus.build(self.plan.corpus, self.out / "embedded" / "tokenizer.json", self.processes)
        np.save(self.out / "rows.npy", rows)
        real = int(((rows & corpus.ID_MASK) != 0).sum())
        return {
            "rows": len(rows),
            "tokens": real,
            "filled": round(real / rows.size, 4),
            "seconds": round(time.monotonic() - start, 1),
        }

    def _load(self, name: str) -> np.ndarray:
        """Packed rows [n, T] int32 of the stage `corpus` (rows) or `answers`."""
        rows: np.ndarray = np.load(self.out / f"{name}.npy")
        return rows

    def target(self) -> Report:
        rows = self._load("rows")
        trained, outcome = train_target(self.plan.target, rows, self.out, self.log, self.device, self.dtype)
        save_module(trained, self.out / "target.safetensors")
        return self._trained(trained, outcome, self.plan.target.rows)

    def _trained(self, module: torch.nn.Module, outcome: Outcome, rows: int) -> Report:
        tokens = outcome.steps * rows * self.plan.corpus.row_tokens
        return {
            "parameters": parameters(module),
            "steps": outcome.steps,
            "tokens": tokens,
            "seconds": round(outcome.seconds, 1),
            "tokens_per_second": round(tokens / max(outcome.seconds, 1e-6)),
            "loss": round(outcome.loss, 4),
            **outcome.figures,
        }

    def load_target(self) -> Target:
        target = Target(self.plan.target.config, self.dtype)
        load_module(target, self.out / "target.safetensors")
        return target.to(self.device).requires_grad_(False).eval()

    def answers(self) -> Report:
        prompts = lots_of(self._load("rows"), self.plan.answers.seed)
        rows, made = answer_rows(self.load_target(), prompts, self.plan.corpus.row_tokens, self.plan.answers)
        np.save(self.out / "answers.npy", rows)
        return {"rows": len(rows), **made}

    def mtp(self) -> Report:
        head, outcome = train_mtp(self.plan.mtp, self.load_target(), self._load("answers"), self.out, self.log)
        save_module(head, self.out / "mtp.safetensors")
        return self._trained(head, outcome, self.plan.mtp.rows)

    def drafter(self, stage: str) -> Report:
        recipe = replace(self.plan.drafter, config=self.plan.block(stage))
        drafter, outcome = train_drafter(stage, recipe, self.load_target(), self._load("answers"), self.out, self.log)
        save_module(drafter, self.out / f"{stage}.safetensors")
        return self._trained(drafter, outcome, recipe.rows)

    def load_head(self) -> MtpHead:
        head = MtpHead(self.plan.target.config)
        load_module(head, self.out / "mtp.safetensors")
        return head.to(self.device).eval()

    def load_drafter(self, stage: str) -> BlockDrafter:
        drafter = BlockDrafter(self.plan.block(stage))
        load_module(drafter, self.out / f"{stage}.safetensors")
        return drafter.to(self.device).eval()

    def replies(self, target: Target) -> dict[str, list[evaluate.Reply]]:
        """Greedy replies to the held-out prompts; samples of them are kept for the eye."""
        tokenizer = Tokenizer.from_file(str(self.out / "embedded" / "tokenizer.json"))
        found, samples = {}, []
        for kind in MAKERS:
            chats = corpus.held_out(kind, self.plan.eval_prompts)
            prompts = [tokenizer.encode(render(chat)[0], add_special_tokens=False).ids for chat in chats]
            cold = torch.zeros(len(prompts), device=self.device)
            answers = generate(target, prompts, self.plan.eval_tokens, cold)
            found[kind] = [evaluate.Reply(p, a) for p, a in zip(prompts, answers, strict=True)]
            for chat, answer in list(zip(chats, answers, strict=True))[:6]:
                text = tokenizer.decode(answer, skip_special_tokens=False)
                samples.append({"kind": kind, "prompt": chat.turns[-1][1], "reply": text, "corpus": chat.answer})
            same = sum(tokenizer.decode(a) == c.answer for c, a in zip(chats, answers, strict=True))
            self.log(stage="eval", kind=kind, equal_to_the_corpus=round(same / len(chats), 3))
        write_json(self.out / "samples.json", samples)
        return found

    def eval(self) -> Report:
        target = self.load_target()
        replies = self.replies(target)
        right = {"mtp": evaluate.mtp_right(target, self.load_head(), self.plan.head_drafts)}
        right |= {stage: evaluate.block_right(target, self.load_drafter(stage)) for stage in _DRAFTERS}
        return {stage: evaluate.acceptance(target, replies, right_fn) for stage, right_fn in right.items()}

    def export(self) -> Report:
        folder = self.out / "embedded"
        head_share = self._acceptance("mtp", self.plan.head_drafts)
        export_target(self.load_target(), self.load_head(), self.plan.target.config, folder, head_share)
        for stage in _DRAFTERS:
            config = self.plan.block(stage)
            share = self._acceptance(stage, config.block - 1)
            export_drafter(self.load_drafter(stage), config, folder / "drafters" / stage, share)
        (folder / "MODEL_CARD.md").write_text(model_card(self.runner.results), encoding="utf-8")
        return {"bytes": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())}

    def _acceptance(self, stage: str, k: int) -> dict[str, float]:
        """Accepted / proposed at this K, pooled, from the eval stage."""
        found: dict[str, Any] = self.runner.results["eval"]
        return {str(k): round((found[stage]["pooled"]["tokens_per_round"] - 1) / k, 3)}
