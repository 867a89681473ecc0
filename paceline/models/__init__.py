"""Model families: one file and one line each. Keys are the `model_type` of a Hugging Face config."""

from paceline.core.registry import Registry
from paceline.models.base import Family

MODELS: Registry[Family] = Registry(
    "model_type",
    {
        "qwen3_5_text": "paceline.models.qwen35:FAMILY",
        "qwen3": "paceline.models.qwen3:FAMILY",
        "llama": "paceline.models.llama:FAMILY",
    },
)
