"""Ids and bytes against the tokenizers library itself."""

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.errors import CheckpointError, RequestError
from paceline.text.tokenizer import Tokenizer
from tests.kit import text_model

TEXTS = ["", " ", "hello world", "Grüße 日本語 🙂\n\t", "<think>a</think>", "\x00\x7f\x80", "a" * 500]


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ids_and_texts_are_the_librarys(tokenizer: Tokenizer, folder: Path) -> None:
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))

    @given(st.lists(st.integers(0, library.get_vocab_size() - 1), max_size=30))
    def same_text(ids: list[int]) -> None:
        assert tokenizer.decode(ids) == library.decode(ids, skip_special_tokens=True)

    @given(st.text(max_size=80))
    def same_ids(text: str) -> None:
        assert tokenizer.encode(text) == library.encode(text, add_special_tokens=False).ids

    same_text()
    same_ids()


def test_special_tokens_are_recognised_and_give_no_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>x<|im_end|>")
    assert len(ids) == 3
    assert ids[2] == tokenizer.generation.eos_ids[0]
    assert tokenizer.decode(ids) == "x"


def test_the_kits_vocabulary(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == text_model.VOCAB


def test_ids_with_gaps(tmp_path: Path) -> None:
    path = text_model.build(tmp_path) / "tokenizer.json"
    state = json.loads(path.read_text())
    state["model"]["vocab"]["a"] = 1000
    path.write_text(json.dumps(state))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("a") == [1000]
    assert tokenizer.vocab_size == 1001


def test_unused_ids_give_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(tokenizer.vocab_size + 5) == b""


def test_lone_surrogates_are_refused_by_field(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"prompt: lone surrogate U\+D800 at character 2") as caught:
        tokenizer.encode("ab\ud800", "prompt")
    assert caught.value.param == "prompt"


def test_bos_only_where_the_model_wants_it(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with_bos = Tokenizer.load(text_model.build(tmp_path, add_bos=True))
    plain = tokenizer.encode("hi")
    assert tokenizer.encode("hi", bos=True) == plain
    assert with_bos.encode("hi") == plain
    assert with_bos.encode("hi", bos=True) == [0, *plain]
    assert with_bos.encode("<|endoftext|>hi", bos=True) == [0, *plain]


def test_sampling_defaults_come_from_the_model(tmp_path: Path, tokenizer: Tokenizer) -> None:
    assert tokenizer.generation.sampling.temperature == 1.0
    sampling = Tokenizer.load(text_model.build(tmp_path, temperature=0.6, top_k=20)).generation.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.6, 20, 1.0)


def test_byte_fallback_tokens(tmp_path: Path) -> None:
    text_model.build(tmp_path)
    vocabulary = {"<unk>": 0, "<0xE2>": 1, "<0x82>": 2, "<0xAC>": 3, "\u2581costs": 4, "\u2581": 5}
    codec = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], byte_fallback=True))
    codec.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.Replace("\u2581", " "), tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    )
    codec.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.token_bytes(1) == b"\xe2"
    assert tokenizer.decode([4, 5, 1, 2, 3]) == " costs €"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *[(name, content) for name in ("tokenizer.json", "generation.json") for content in (None, "", "{", "[]")],
        ("tokenizer.json", '{"version": "1.0"}'),
        ("generation.json", '{"eos_ids": "x"}'),
    ],
)
def test_broken_files_are_one_clear_error(tmp_path: Path, name: str, content: str | None) -> None:
    path = text_model.build(tmp_path) / name
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_decoders_are_refused(tmp_path: Path) -> None:
    path = text_model.build(tmp_path) / "tokenizer.json"
    state = json.loads(path.read_text())
    state["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    path.write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match="WordPiece"):
        Tokenizer.load(tmp_path)
