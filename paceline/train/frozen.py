"""A published checkpoint as the frozen target that a drafter is trained for: any family that paceline serves."""

import json
from dataclasses import asdict
from pathlib import Path

import torch

from paceline.checkpoint.base import Reader
from paceline.checkpoint.load import load_tensors
from paceline.core.errors import CheckpointError
from paceline.core.spec import LayerKind, ModelSpec
from paceline.models import MODELS
from paceline.train.export import load_module, save_module
from paceline.train.files import write_json
from paceline.train.target import Target, TargetConfig

FILES = _SPEC, _WEIGHTS = "target.json", "target.safetensors"


def config_of(spec: ModelSpec) -> TargetConfig:
    """The trainer's shapes of a served model; CheckpointError for what the trainer cannot express."""
    if not spec.tied or spec.attention_bias or spec.rope.scaling:
        lacking = "an untied head" if not spec.tied else "attention biases" if spec.attention_bias else "scaled rope"
        raise CheckpointError(f"{spec.name}: drafters cannot be trained yet for a target with {lacking}")
    full = [i for i, kind in enumerate(spec.layers) if kind is LayerKind.FULL]
    interval = full[0] + 1
    if full != list(range(interval - 1, len(spec.layers), interval)):
        raise CheckpointError(f"{spec.name}: full attention at layers {full}: an even interval is needed")
    gdn = {} if spec.gdn is None else {
        "key_heads": spec.gdn.key_heads, "value_heads": spec.gdn.value_heads, "key_dim": spec.gdn.key_dim,
        "value_dim": spec.gdn.value_dim, "conv_width": spec.gdn.conv_width,
    }  # fmt: skip
    return TargetConfig(
        vocab=spec.vocab,
        hidden=spec.hidden,
        layers=len(spec.layers),
        interval=interval,
        ffn=spec.ffn,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        rotary_dim=spec.rope.rotary_dim,
        theta=spec.rope.theta,
        max_context=spec.max_context,
        eps=spec.rms_eps,
        gated=spec.attention_gate,
        qk_norm=spec.qk_norm,
        offset_norms=bool(spec.norm_offset),
        end_id=spec.eos_ids[0],
        pad_id=spec.eos_ids[0],
        **gdn,
    )


def read_target(reader: Reader) -> Target:
    """The checkpoint's weights in bf16, quantised ones expanded."""
    config = reader.config()
    spec = MODELS.get(str(config.get("model_type"))).spec(config, reader.path.stem)
    target = Target(config_of(spec), torch.bfloat16)
    wanted = {name: tuple(value.shape) for name, value in target.state_dict().items()}
    target.load_state_dict(dict(load_tensors(reader, wanted)))
    return target


def save_target(target: Target, folder: Path) -> None:
    save_module(target, folder / _WEIGHTS)
    write_json(folder / _SPEC, asdict(target.config))


def load_target(folder: Path, device: torch.device, dtype: torch.dtype) -> Target:
    """What `save_target` wrote, frozen; activations run in `dtype`."""
    target = Target(TargetConfig(**json.loads((folder / _SPEC).read_text(encoding="utf-8"))), dtype)
    load_module(target, folder / _WEIGHTS)
    return target.to(device, torch.bfloat16 if dtype is torch.bfloat16 else torch.float32).requires_grad_(False).eval()
