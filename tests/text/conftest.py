"""One small tokenizer for all text tests."""

from pathlib import Path

import pytest

from paceline.text.tokenizer import Tokenizer
from tests.kit import text_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_model.build(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)
