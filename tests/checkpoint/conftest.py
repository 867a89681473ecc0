"""Checkpoints shared by the tests: the real small model (downloaded once into the user's cache) and tiny random ones."""

from pathlib import Path

import pytest
import torch

from paceline.checkpoint.pull import pull
from tests.checkpoint import tiny


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return pull("smollm2")


@pytest.fixture(scope="session")
def qwen35_model() -> torch.nn.Module:
    return tiny.qwen35()


@pytest.fixture(scope="session")
def qwen35_folder(qwen35_model: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen35")
    qwen35_model.save_pretrained(folder)
    return folder


@pytest.fixture
def small_gguf(tmp_path: Path) -> Path:
    return tiny.write_llama(tmp_path / "small.gguf")
