"""Builds the embedded model: corpus → tokenizer → target → answers → mtp → dflash → dflash2 → eval → export.

    python -m paceline.train.embedded --out DIR [--data DIR] [--stages target,answers] [--minutes-target 7] …

Every stage leaves its result in --out and ends with one JSON line; a later call goes on from there. `--toy` is the size of the
tests. The finished model is --out/embedded.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from paceline.train import corpus, evaluate
from paceline.train.answers import AnswerSettings, answer_rows, lots_of
from paceline.train.block import BlockConfig, BlockDrafter
from paceline.train.bpe import save_tokenizer, train_tokenizer
from paceline.train.card import model_card
from paceline.train.chats import render
from paceline.train.corpus import CorpusSettings
from paceline.train.drafter_loss import DrafterLoss
from paceline.train.export import export_drafter, export_target, load_module, parameters, save_module, write_json
from paceline.train.generate import generate
from paceline.train.loop import Log, LoopSettings, Outcome
from paceline.train.mtp import MtpHead
from paceline.train.recipes.dflash import DrafterRecipe, train_drafter
from paceline.train.recipes.mtp import MtpRecipe, train_mtp
from paceline.train.recipes.target import TargetRecipe, train_target
from paceline.train.target import Target, TargetConfig
from paceline.train.workloads import MAKERS


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


def full_plan(args: argparse.Namespace) -> Plan:
    config = TargetConfig()
    return Plan(
        target=TargetRecipe(
            LoopSettings(args.minutes_target, matrix_rate=args.matrix_rate, rate=args.matrix_rate / 2),
            config,
            rows=args.rows,
        ),
        mtp=MtpRecipe(LoopSettings(args.minutes_mtp), rows=args.rows // 2),
        drafter=DrafterRecipe(LoopSettings(args.minutes_drafter), rows=args.rows // 2),
        corpus=CorpusSettings(args.chats, data=args.data),
        answers=AnswerSettings(args.minutes_answers),
    )


def toy_plan(data: str | None = None) -> Plan:
    """Seconds on one CPU core: shows that every stage runs, not that the model is any good."""
    config = TargetConfig(vocab=640, hidden=64, layers=4, ffn=96, heads=2, kv_heads=1, head_dim=32, rotary_dim=16, key_heads=1,
                          value_heads=2, key_dim=32, value_dim=32, max_context=512)  # fmt: skip
    block = BlockConfig(vocab=640, hidden=64, target_layers=4, ffn=96, heads=2, kv_heads=1, head_dim=32, taps=(1, 2, 3),
                        window=96, rank=16, max_context=512)  # fmt: skip
    loop = LoopSettings(5.0, max_steps=12, log_every=4, warmup_steps=4)
    return Plan(
        target=TargetRecipe(replace(loop, max_steps=30), config, rows=4),
        mtp=MtpRecipe(loop, rows=2, steps=3),
        drafter=DrafterRecipe(loop, block, DrafterLoss(anchors=8), rows=2),
        corpus=CorpusSettings(300, row_tokens=256, data=data),
        answers=AnswerSettings(0.05, new_tokens=24, batch_tokens=1 << 11),
        tokenizer_chats=300,
        eval_prompts=2,
        eval_tokens=24,
    )


class Build:
    """The stages over one output folder; `results` (summary.json) holds what each of them reported."""

    def __init__(self, out: Path, plan: Plan, device: torch.device, processes: int) -> None:
        self.out, self.plan, self.device, self.processes = out, plan, device, processes
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        out.mkdir(parents=True, exist_ok=True)
        self.log = Log(out / "log.jsonl")
        summary = out / "summary.json"
        self.results: dict[str, dict[str, object]] = json.loads(summary.read_text()) if summary.exists() else {}
        self.blocks = {
            "dflash": replace(plan.drafter.config, dynamic=False),
            "dflash2": replace(plan.drafter.config, dynamic=True),
        }

    def done(self, stage: str, **result: object) -> None:
        self.results[stage] = result
        write_json(self.out / "summary.json", self.results)
        self.log(stage=stage, done=True, **result)

    def tokenizer(self) -> None:
        settings = replace(self.plan.corpus, chats=self.plan.tokenizer_chats)
        texts = (
            "".join(render(chat)) for batch in range(settings.batches) for chat in corpus.chats_of(settings, batch)
        )
        made = train_tokenizer(texts, self.plan.target.config.vocab)
        save_tokenizer(made, self.out / "embedded", self.plan.target.config.max_context)
        self.done("tokenizer", tokens=made.get_vocab_size(), chats=self.plan.tokenizer_chats)

    def corpus(self) -> None:
        start = time.monotonic()
        rows = corpus.build(self.plan.corpus, self.out / "embedded" / "tokenizer.json", self.processes)
        np.save(self.out / "rows.npy", rows)
        real = int(((rows & corpus.ID_MASK) != 0).sum())
        self.done(
            "corpus",
            rows=len(rows),
            tokens=real,
            filled=round(real / rows.size, 4),
            seconds=round(time.monotonic() - start, 1),
        )

    def _rows(self) -> np.ndarray:
        if not (self.out / "rows.npy").exists():
            self.corpus()
        rows: np.ndarray = np.load(self.out / "rows.npy")
        return rows

    def target(self) -> None:
        trained, outcome = train_target(self.plan.target, self._rows(), self.out, self.log, self.device, self.dtype)
        save_module(trained, self.out / "target.safetensors")
        self._trained("target", trained, outcome, self.plan.target.rows)

    def _trained(self, stage: str, module: torch.nn.Module, outcome: Outcome, rows: int) -> None:
        tokens = outcome.steps * rows * self.plan.corpus.row_tokens
        self.done(
            stage,
            parameters=parameters(module),
            steps=outcome.steps,
            tokens=tokens,
            seconds=round(outcome.seconds, 1),
            tokens_per_second=round(tokens / max(outcome.seconds, 1e-6)),
            loss=round(outcome.loss, 4),
            **outcome.figures,
        )

    def load_target(self) -> Target:
        target = Target(self.plan.target.config, self.dtype)
        load_module(target, self.out / "target.safetensors")
        return target.to(self.device).requires_grad_(False).eval()

    def answers(self) -> None:
        prompts = lots_of(self._rows(), self.plan.answers.seed)
        rows, made = answer_rows(self.load_target(), prompts, self.plan.corpus.row_tokens, self.plan.answers)
        np.save(self.out / "answers.npy", rows)
        self.done("answers", rows=len(rows), **made)

    def _answers(self) -> np.ndarray:
        rows: np.ndarray = np.load(self.out / "answers.npy")
        return rows

    def mtp(self) -> None:
        head, outcome = train_mtp(self.plan.mtp, self.load_target(), self._answers(), self.out, self.log)
        save_module(head, self.out / "mtp.safetensors")
        self._trained("mtp", head, outcome, self.plan.mtp.rows)

    def drafter(self, stage: str) -> None:
        recipe = replace(self.plan.drafter, config=self.blocks[stage])
        drafter, outcome = train_drafter(stage, recipe, self.load_target(), self._answers(), self.out, self.log)
        save_module(drafter, self.out / f"{stage}.safetensors")
        self._trained(stage, drafter, outcome, recipe.rows)

    def load_head(self) -> MtpHead:
        head = MtpHead(self.plan.target.config)
        load_module(head, self.out / "mtp.safetensors")
        return head.to(self.device).eval()

    def load_drafter(self, stage: str) -> BlockDrafter:
        drafter = BlockDrafter(self.blocks[stage])
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

    def eval(self) -> None:
        target = self.load_target()
        replies = self.replies(target)
        found: dict[str, object] = {}
        if (self.out / "mtp.safetensors").exists():
            found["mtp"] = evaluate.acceptance(
                target, replies, evaluate.mtp_right(target, self.load_head(), self.plan.head_drafts)
            )
        for stage in self.blocks:
            if (self.out / f"{stage}.safetensors").exists():
                found[stage] = evaluate.acceptance(
                    target, replies, evaluate.block_right(target, self.load_drafter(stage))
                )
        self.done("eval", **found)

    def export(self) -> None:
        folder = self.out / "embedded"
        head_share = self._acceptance("mtp", self.plan.head_drafts)
        export_target(self.load_target(), self.load_head(), self.plan.target.config, folder, head_share)
        for stage, config in self.blocks.items():
            share = self._acceptance(stage, config.block - 1)
            export_drafter(self.load_drafter(stage), config, folder / "drafters" / stage, share)
        (folder / "MODEL_CARD.md").write_text(model_card(self.results), encoding="utf-8")
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        self.done("export", bytes=size)

    def _acceptance(self, stage: str, k: int) -> dict[str, float]:
        """Accepted / proposed at this K, pooled, from the eval stage; empty before it ran."""
        found = self.results.get("eval", {}).get(stage)
        if not isinstance(found, dict):
            return {}
        return {str(k): round((found["pooled"]["tokens_per_round"] - 1) / k, 3)}

    def stages(self) -> dict[str, Callable[[], None]]:
        return {
            "tokenizer": self.tokenizer,
            "corpus": self.corpus,
            "target": self.target,
            "answers": self.answers,
            "mtp": self.mtp,
            "dflash": lambda: self.drafter("dflash"),
            "dflash2": lambda: self.drafter("dflash2"),
            "eval": self.eval,
            "export": self.export,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the embedded model.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", help="folder with gsm8k_train.jsonl and tinyshakespeare.txt (optional)")
    parser.add_argument("--stages", help="comma-separated; all by default")
    parser.add_argument("--minutes-target", type=float, default=7.0)
    parser.add_argument("--minutes-answers", type=float, default=1.0)
    parser.add_argument("--minutes-mtp", type=float, default=2.0)
    parser.add_argument("--minutes-drafter", type=float, default=3.0)
    parser.add_argument("--chats", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=64, help="packed rows of 1,024 tokens per step")
    parser.add_argument(
        "--matrix-rate", type=float, default=8e-3, help="the target's peak rate; half of it for vectors"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--toy", action="store_true", help="toy sizes, for a check on the CPU")
    args = parser.parse_args()
    # Masks change from batch to batch here, and that backend plans anew for every shape.
    torch.backends.cuda.enable_cudnn_sdp(False)
    plan = toy_plan(args.data) if args.toy else full_plan(args)
    build = Build(args.out, plan, torch.device(args.device), args.processes)
    stages = build.stages()
    wanted = args.stages.split(",") if args.stages else list(stages)
    unknown = [name for name in wanted if name not in stages]
    if unknown:
        parser.error(f"--stages: {unknown[0]} is none of {', '.join(stages)}")
    for name in wanted:
        stages[name]()


if __name__ == "__main__":
    main()
