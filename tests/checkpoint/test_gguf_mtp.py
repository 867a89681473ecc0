"""The shipped hybrid as a GGUF file with its MTP head in the block after the layers: same tensors, tokens and acceptance.

Names come from the `gguf` package's own tables; values are converted by the published rules (norms + 1, value heads tiled).
"""

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import MODEL_TENSOR, TENSOR_NAMES, GGMLQuantizationType
from gguf.quants import quantize
from safetensors.torch import load_file

from paceline.build import EngineOptions, configure
from paceline.checkpoint.base import open_checkpoint
from paceline.core.errors import PacelineError
from paceline.core.request import Request
from paceline.runner.backend import make_backend
from paceline.runner.drafter import build_drafter
from paceline.runner.weights import load_weights
from paceline.text.tokenizer import Tokenizer
from tests.checkpoint import tiny
from tests.kit import embedded
from tests.kit.run import Model, Reply, run, sampling

CONFIG = json.loads((embedded.FOLDER / "config.json").read_text())
LAYERS, HEADS, VALUE_HEADS = 8, 2, 4
HEAD = {
    "mtp.fc": MODEL_TENSOR.NEXTN_EH_PROJ,
    "mtp.pre_fc_norm_embedding": MODEL_TENSOR.NEXTN_ENORM,
    "mtp.pre_fc_norm_hidden": MODEL_TENSOR.NEXTN_HNORM,
    "mtp.norm": MODEL_TENSOR.NEXTN_SHARED_HEAD_NORM,
}
Keep = Callable[[str], bool]


def write(path: Path, keep: Keep = lambda name: True, head: bool = True) -> Path:
    """The matrices in bf16, vectors in fp32, as conversions do; only the tensors that `keep` names."""
    writer = gguf.GGUFWriter(path, "qwen35")
    rope = CONFIG["rope_parameters"]
    writer.add_block_count(LAYERS + head)
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_key_length(CONFIG["head_dim"])
    writer.add_value_length(CONFIG["head_dim"])
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(CONFIG["head_dim"] * rope["partial_rotary_factor"]))
    writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    writer.add_full_attention_interval(CONFIG["full_attention_interval"])
    writer.add_ssm_conv_kernel(CONFIG["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(CONFIG["linear_key_head_dim"])
    writer.add_ssm_group_count(HEADS)
    writer.add_ssm_time_step_rank(VALUE_HEADS)
    writer.add_ssm_inner_size(VALUE_HEADS * CONFIG["linear_value_head_dim"])
    if head:
        writer.add_nextn_predict_layers(1)
    add_text(writer)
    for name, tensor in load_file(embedded.FOLDER / "model.safetensors").items():
        if keep(name) and (head or not name.startswith("mtp.")):
            add_tensor(writer, name, tensor.float().numpy())
    tiny.finish(writer)
    return path


def add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray) -> None:
    stem = name.removesuffix(".weight")
    stored = f"{TENSOR_NAMES[HEAD[stem]].format(bid=LAYERS)}.weight" if stem in HEAD else tiny.qwen35_name(name, LAYERS)
    values = np.ascontiguousarray(tiny.converted(name, values, HEADS, VALUE_HEADS, CONFIG["linear_key_head_dim"]))
    if values.ndim == 2 and "conv1d" not in name:
        kind = GGMLQuantizationType.BF16
        writer.add_tensor(stored, quantize(values, kind), raw_dtype=kind)
    else:
        writer.add_tensor(stored, values.astype(np.float32))


def add_text(writer: gguf.GGUFWriter) -> None:
    stored = json.loads((embedded.FOLDER / "tokenizer.json").read_text())
    special = {token["id"]: token["content"] for token in stored["added_tokens"]}
    vocab = {i: token for token, i in stored["model"]["vocab"].items()} | special
    tokens = [vocab.get(i, f"[PAD{i}]") for i in range(CONFIG["vocab_size"])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if i in special else 1 if i in vocab else 5 for i in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in stored["model"]["merges"]])
    writer.add_eos_token_id(CONFIG["eos_token_id"])
    writer.add_chat_template((embedded.FOLDER / "chat_template.jinja").read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "embedded.gguf")


def test_tensors_and_config_are_the_folders(whole: Path) -> None:
    found, folder = open_checkpoint(whole), open_checkpoint(embedded.FOLDER)
    assert set(found.names()) == set(folder.names())
    assert sum(name.startswith("mtp.") for name in found.names()) == 15
    for name in folder.names():
        want, got = folder.read(name).float(), found.read(name).float()
        assert got.shape == want.shape, name
        if want.ndim == 1:  # (w + 1) − 1 and log(exp(a)) round
            torch.testing.assert_close(got, want, rtol=0, atol=2e-7, msg=name)
        else:
            assert torch.equal(got, want), name
    ours = found.config()
    theirs = {**CONFIG, "eos_token_id": [2, 0]}  # the file's other end tokens are found by name
    shared = ours.keys() & theirs.keys() - {"bos_token_id", "pad_token_id", "dtype", "rope_parameters"}
    assert len(shared) > 20 and {key: ours[key] for key in shared} == {key: theirs[key] for key in shared}
    assert ours["rope_parameters"] == theirs["rope_parameters"]


@pytest.mark.parametrize("k", [3, 7])
def test_same_tokens_and_acceptance(k: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    replies, texts = {}, []
    for name in ("embedded", str(whole)):
        config = configure(EngineOptions(name, "bf16", "mtp", draft_tokens=k, max_context=512, threads=1))
        texts.append(Tokenizer.load(config.model_folder).encode("Name 3 rivers: Rhône,  Elbe.<|im_end|>\n"))
        model = Model(load_weights(config), "bf16")
        work = [
            Request(id=i, prompt=embedded.chat(text), max_tokens=48, sampling=sampling(), stop_ids=[2])
            for i, text in enumerate(embedded.PROMPTS)
        ]
        replies[name] = run(
            model, work, lambda target, config=config: build_drafter(config, target), draft_tokens=k, threads=1
        )
    assert texts[0] == texts[1]
    folder, file = replies.values()
    assert [reply.ids for reply in file] == [reply.ids for reply in folder]
    assert abs(accepted(file) - accepted(folder)) < 0.02 and accepted(file) > 0.4
    assert make_backend(config).facts()["expected_acceptance"] == {}, "the file cannot state it"


def accepted(replies: list[Reply]) -> float:
    rounds = [each for reply in replies for each in reply.rounds]
    return sum(n for _, _, n in rounds) / sum(proposed for _, proposed, _ in rounds)


def test_a_file_without_its_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves without drafts; the drafter that needs the head says what is missing."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    bare = write(tmp_path / "bare.gguf", head=False)
    make_backend(configure(EngineOptions(str(bare), "bf16", "none", max_context=128, threads=1))).close()
    config = configure(EngineOptions(str(bare), "bf16", "mtp", draft_tokens=3, max_context=128, threads=1))
    with pytest.raises(PacelineError, match="bare.gguf holds no mtp.\\* tensors; choose another drafter"):
        make_backend(config)


def test_a_file_of_the_head_alone(tmp_path: Path) -> None:
    shared = ("model.embed_tokens.weight", "model.norm.weight")
    alone = write(tmp_path / "head.gguf", lambda name: name.startswith("mtp.") or name in shared)
    with pytest.raises(PacelineError, match="head.gguf: holds the MTP head alone, not the model") as refusal:
        open_checkpoint(alone)
    assert "\n" not in str(refusal.value)


def test_a_head_that_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    cut = write(tmp_path / "cut.gguf", lambda name: name != "mtp.layers.0.self_attn.k_norm.weight")
    config = configure(EngineOptions(str(cut), "bf16", "mtp", draft_tokens=3, max_context=128, threads=1))
    with pytest.raises(PacelineError, match="tensor mtp.layers.0.self_attn.k_norm.weight is missing"):
        make_backend(config)
