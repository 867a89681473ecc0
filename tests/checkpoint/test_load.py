"""The comparison of wanted and present tensors, made before anything is read."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from paceline.checkpoint.base import Reader, open_checkpoint
from paceline.checkpoint.load import load_tensors
from paceline.core.errors import CheckpointError

NAMES = {
    "model.embed_tokens.weight": (4, 2),
    "model.norm.weight": (2,),
    "model.layers.0.mlp.up_proj.weight": (3, 2),
}
IGNORED = {"model.visual.pos_embed.weight": (1,), "mtp.fc.weight": (2,), "model.layers.0.rotary_emb.inv_freq": (1,)}


def reader(folder: Path, shapes: dict[str, tuple[int, ...]], tied: bool = True) -> Reader:
    save_file({name: torch.rand(shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(f'{{"tie_word_embeddings": {str(tied).lower()}}}')
    return open_checkpoint(folder)


def test_gives_the_wanted_tensors_and_ignores_the_rest(tmp_path: Path) -> None:
    checkpoint = reader(tmp_path, NAMES | IGNORED | {"lm_head.weight": (4, 2)})
    found = dict(load_tensors(checkpoint, NAMES))
    assert set(found) == set(NAMES)
    assert all(torch.equal(found[name], checkpoint.read(name)) for name in NAMES)


@pytest.mark.parametrize(
    ("present", "tied", "words"),
    [
        ({"model.norm.weight": (2,)}, True, r"tensor model.embed_tokens.weight is missing \(and 1 more\); download"),
        (NAMES | {"model.norm.weight": (3,)}, True, r"model.norm.weight is \[3\], config.json makes it \[2\]; config"),
        (NAMES | {"model.layers.1.x": (1,)}, True, r"model.layers.1.x has no place in this model; config"),
        (NAMES | {"lm_head.weight": (4, 2)}, False, r"lm_head.weight has no place"),
    ],
)
def test_refuses_in_one_line(
    present: dict[str, tuple[int, ...]], tied: bool, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = reader(tmp_path, present, tied)
    monkeypatch.setattr(type(checkpoint), "read", lambda *_: pytest.fail("read before the comparison"))
    with pytest.raises(CheckpointError, match=words) as caught:
        load_tensors(checkpoint, NAMES)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)
