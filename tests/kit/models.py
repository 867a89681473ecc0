"""Small random models from transformers, saved as folders: the oracle and the subject read the same files.

Initial norm weights are zeros or ones and gates are alike, which would hide a missing +1 or a swapped norm, so every vector
is randomised.
"""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

VOCAB = 320


def hybrid_config(
    layers: int = 4, heads: int = 4, kv_heads: int = 2, values: int = 4, **extra: object
) -> Qwen3_5TextConfig:
    head_dim = 32
    return Qwen3_5TextConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
        linear_num_key_heads=2, linear_num_value_heads=values, linear_key_head_dim=32, linear_value_head_dim=32,
        max_position_embeddings=1024, tie_word_embeddings=extra.pop("tied", True), eos_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
                         "mrope_section": [2, 1, 1], "mrope_interleaved": True},
        **extra,
    )  # fmt: skip


def dense_config(
    kind: str, layers: int = 2, heads: int = 4, kv_heads: int = 2, tied: bool = True
) -> LlamaConfig | Qwen3Config:
    cls = LlamaConfig if kind == "llama" else Qwen3Config
    return cls(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=32, max_position_embeddings=1024, tie_word_embeddings=tied,
        rms_norm_eps=1e-5, eos_token_id=0, bos_token_id=None,
    )  # fmt: skip


def build(config: LlamaConfig | Qwen3Config | Qwen3_5TextConfig, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    cls = {"llama": LlamaForCausalLM, "qwen3": Qwen3ForCausalLM, "qwen3_5_text": Qwen3_5ForCausalLM}[config.model_type]
    config._attn_implementation = "eager"
    model = cls(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif "embed" not in name:
                parameter.mul_(4.0)  # sharper logits: greedy ties are as rare as in a trained model
    return model


def save(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder
