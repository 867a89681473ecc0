"""A drafter for a published checkpoint: the frozen target is the checkpoint's model, and every stage runs at toy size."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from paceline.checkpoint.base import open_checkpoint
from paceline.core.errors import CheckpointError
from paceline.train import frozen
from paceline.train.answers import AnswerSettings
from paceline.train.block import BlockConfig, BlockDrafter, Blocks
from paceline.train.chats import ask
from paceline.train.corpus import is_held_out
from paceline.train.drafter import DrafterBuild, DrafterPlan
from paceline.train.generate import generate
from paceline.train.loop import Log, LoopSettings
from paceline.train.prompts import data_prompts, split
from paceline.train.stages import Runner
from paceline.train.target import Target, pack
from tests.kit import models as kit

FAMILIES = {
    "llama": kit.dense_config("llama"),
    "qwen3": kit.dense_config("qwen3"),
    "hybrid": kit.hybrid_config(layers=8),
}


def frozen_copy(folder: Path, out: Path) -> Target:
    frozen.save_target(frozen.read_target(open_checkpoint(folder)), out)
    return frozen.load_target(out, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("family", FAMILIES)
def test_frozen_target_is_the_checkpoints_model(family: str, tmp_path: Path) -> None:
    oracle = kit.build(FAMILIES[family])
    for parameter in oracle.parameters():
        parameter.data = parameter.data.bfloat16().float()  # what the frozen copy holds
    target = frozen_copy(kit.save(oracle, tmp_path / "model"), tmp_path / "out")
    ids = torch.randint(1, kit.VOCAB, (2, 70), generator=torch.Generator().manual_seed(3))
    seen = oracle(ids, output_hidden_states=True)
    hidden, taps = target(ids, pack(torch.zeros_like(ids), target.config, target.dtype), (0, 1))
    assert torch.allclose(target.logits(hidden), seen.logits, rtol=2e-4, atol=2e-3)
    assert torch.allclose(taps[0], seen.hidden_states[1], rtol=2e-4, atol=2e-4)
    prompts = [ids[0, :9].tolist(), ids[1, :4].tolist()]
    for prompt, reply in zip(prompts, generate(target, prompts, 12, torch.zeros(2)), strict=True):
        whole = torch.tensor([prompt + reply])
        expected = oracle(whole).logits[0].argmax(-1)[len(prompt) - 1 : -1].tolist()
        assert reply == expected


def test_targets_that_the_trainer_cannot_express(tmp_path: Path) -> None:
    folder = kit.save(kit.build(kit.dense_config("llama", tied=False)), tmp_path / "untied")
    with pytest.raises(
        CheckpointError, match="untied: drafters cannot be trained yet for a target with an untied head"
    ):
        frozen.read_target(open_checkpoint(folder))


def test_condition_and_fold(tmp_path: Path) -> None:
    """Lanes of very different size enter `fc` alike, and folding the scale into `fc` changes no output."""
    target = frozen_copy(kit.save(kit.build(FAMILIES["llama"]), tmp_path / "model"), tmp_path / "out")
    config = BlockConfig(hidden=64, vocab=kit.VOCAB, target_layers=2, layers=1, ffn=64, heads=2, kv_heads=1, head_dim=32,
                         taps=(0, 1), dynamic=True, rank=8)  # fmt: skip
    torch.manual_seed(0)
    drafter = BlockDrafter(config)
    ids = torch.randint(1, kit.VOCAB, (2, 40))
    docs = torch.zeros_like(ids)
    _, features = target(ids, pack(docs, target.config, target.dtype), config.taps)
    features[0][..., 5] *= 300
    drafter.condition(target, features, torch.ones_like(ids, dtype=torch.bool))
    scaled = torch.cat(features, -1) * drafter.feature_scale
    assert torch.allclose(scaled.pow(2).mean((0, 1)), torch.ones(128), atol=1e-3)
    assert torch.equal(drafter.norm.weight, target.model.norm.weight)
    blocks = Blocks(torch.tensor([[3, 20], [7, 30]]), torch.full((2, 2), 8))
    before = drafter(target, ids, features, docs, blocks)
    drafter.fold()
    assert float(drafter.feature_scale.sum()) == 128
    assert torch.allclose(drafter(target, ids, features, docs, blocks), before, atol=1e-4)


def test_prompts_are_split_by_their_text(tmp_path: Path) -> None:
    (tmp_path / "gsm8k_train.jsonl").write_text('{"question": "How many are six and two?", "answer": "8"}\n')
    (tmp_path / "spec_bench_dev.jsonl").write_text('{"turns": ["Who are you?", "Why?"]}\n')
    assert [kind for kind, _ in data_prompts(tmp_path)] == ["gsm8k", "spec-bench"]
    assert data_prompts(tmp_path)[1][1].turns == (("user", "Who are you?"),)
    texts: list[str] = []

    def encode(text: str) -> list[int]:
        texts.append(text)
        return [len(texts) - 1] * min(len(text), 150)

    training, kept = split(1200, None, 4, encode, longest=149)
    assert set(kept) == {"structured", "code", "translation", "reasoning", "story"}
    assert all(len(found) <= 4 for found in kept.values())
    assert all(is_held_out(ask(texts[ids[0]], "")) for found in kept.values() for ids in found)
    assert not any(is_held_out(ask(texts[ids[0]], "")) for ids in training)
    assert all(len(texts[ids[0]]) < 150 for ids in training) and len(training) > 300


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A random llama with a small byte-level tokenizer and a chat template."""
    folder = kit.save(kit.build(FAMILIES["llama"]), tmp_path / "model")
    codec = Tokenizer(models.BPE())
    codec.pre_tokenizer, codec.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<end>", "<user>", "<spare>"]
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=specials)
    codec.train_from_iterator(["Write a story about the list of numbers"], trainer)
    codec.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    (folder / "chat_template.jinja").write_text("{% for m in messages %}<user>{{ m.content }}{% endfor %}<end>")
    return folder


def test_every_stage_at_toy_size(model: Path, tmp_path: Path) -> None:
    loop = LoopSettings(5.0, max_steps=12, log_every=4, warmup_steps=4)
    answers = AnswerSettings(0.05, new_tokens=16, batch_tokens=1 << 11, greedy=0.5)
    plan = DrafterPlan(layers=1, own_prompts=60, row_tokens=256, rows=2, anchors=8, answers=answers, loop=loop,
                       eval_prompts=1, eval_tokens=12)  # fmt: skip
    codec = Tokenizer.from_file(str(model / "tokenizer.json"))
    runner = Runner(tmp_path / "out", Log(tmp_path / "out" / "log.jsonl"))
    DrafterBuild(runner, plan, torch.device("cpu"), model, lambda text: [1, *codec.encode(text).ids]).run()
    results = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert list(results) == ["prompts", "target", "answers", "train", "eval", "export"]
    assert set(results["eval"]) == {"dflash2"} and "pooled" in results["eval"]["dflash2"]
    losses = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    steps = [line["loss"] for line in losses if "step" in line]
    assert steps[-1] < steps[0]
    config = json.loads((tmp_path / "out" / "drafter" / "config.json").read_text())
    assert config["dflash_config"]["mask_token_id"] == codec.token_to_id("<spare>")
    assert config["hidden_size"] == 64 and config["num_target_layers"] == 2
    tensors = load_file(tmp_path / "out" / "drafter" / "model.safetensors")
    assert tensors["fc.weight"].shape == (64, 64 * len(config["dflash_config"]["target_layer_ids"]))
