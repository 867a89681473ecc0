"""What a command runs when nothing is named: the package's model with the drafter that it brings."""

import shutil
from pathlib import Path

import pytest

from paceline.build import EngineOptions, configure
from paceline.checkpoint.pull import SHIPPED
from paceline.core.config import EngineConfig
from paceline.core.errors import ConfigError

HOME = SHIPPED["embedded"]


def configured(**options: object) -> EngineConfig:
    return configure(EngineOptions(**{"weights": "bf16"} | options))  # type: ignore[arg-type]


def model_with(folder: Path, *drafters: str) -> str:
    shutil.copytree(HOME, folder, ignore=shutil.ignore_patterns("drafters"))
    for name in drafters:
        shutil.copytree(HOME / "drafters" / name, folder / "drafters" / name)
    return str(folder)


def test_nothing_named() -> None:
    config = configured()
    assert (config.model_name, config.drafter, config.draft_tokens) == ("embedded", "dflash2", 7)
    assert config.drafter_path == str(HOME / "drafters" / "dflash2")


@pytest.mark.parametrize(
    ("brought", "drafter"), [(("dflash", "dflash2"), "dflash2"), (("dflash",), "dflash"), ((), "ngram")]
)
def test_the_drafter_that_a_model_brings(brought: tuple[str, ...], drafter: str, tmp_path: Path) -> None:
    config = configured(model=model_with(tmp_path / "model", *brought))
    assert (config.drafter, config.draft_tokens) == (drafter, 7)
    own = str(tmp_path / "model" / "drafters" / drafter) if brought else None
    assert config.drafter_path == own


def test_a_named_drafter_is_taken() -> None:
    assert configured(drafter="mtp", draft_tokens=2).drafter == "mtp"
    for options in ({"drafter": "none"}, {"draft_tokens": 0}, {"drafter": "mtp", "draft_tokens": 0}):
        config = configured(**options)
        assert (config.drafter, config.draft_tokens, config.drafter_path) == ("none", 0, None)
    path = str(HOME / "drafters" / "dflash")
    assert configured(drafter="dflash", drafter_path=path).drafter_path == path


def test_a_drafter_that_is_not_there(tmp_path: Path) -> None:
    model = model_with(tmp_path / "model", "dflash")
    with pytest.raises(
        ConfigError, match="--drafter = dflash2: this model brings none; put .*/model/drafters/dflash2, or"
    ):
        configured(model=model, drafter="dflash2")
    with pytest.raises(
        ConfigError, match="--drafter-path = .*: say whose folder it is: add --drafter with one of dflash"
    ):
        configured(drafter_path=str(HOME / "drafters" / "dflash"))
