"""Qwen3 dense decoders: as Llama's, with an RMS norm over each query and key head before the rotation."""

from dataclasses import replace

from paceline.core.spec import ModelSpec
from paceline.models import llama
from paceline.models.base import Config, Family


def spec(config: Config, name: str) -> ModelSpec:
    return replace(llama.spec({"head_dim": 128, **config}, name), arch="qwen3", qk_norm=True)


FAMILY = Family(spec, llama.parts)
