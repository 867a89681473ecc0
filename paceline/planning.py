"""The wiring of a memory plan: a model's shape, its formats and drafters become the planner's input.

Needs no engine and no device. Shapes come from config files (`checkpoint/shapes.py`); the formulas are in `memory/plan*.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoint.shapes import SHAPES, ConfigFile, Shape, open_config, open_shape
from paceline.core.errors import CheckpointError, ConfigError, PacelineError
from paceline.core.formats import KvFormat, WeightFormat
from paceline.core.spec import DrafterSpec, LayerKind, ModelSpec
from paceline.drafters import DESCRIBERS, DRAFTERS, WEIGHTS_FROM
from paceline.drafters.base import WeightsFrom
from paceline.memory.devices import PROFILES, after_weights, given_memory, profile
from paceline.memory.layout import ITEM_BYTES
from paceline.memory.plan import Device, Layout, Subject
from paceline.memory.plan_engine import EngineLayout
from paceline.memory.plan_reference import ReferenceLayout
from paceline.quant.kv_formats import KV_FORMATS, kv_format
from paceline.quant.weight_formats import NARROW, WEIGHT_FORMATS, WIDE, weight_format

__all__ = [
    "KV_FORMATS",
    "LAYOUTS",
    "PROFILES",
    "SHAPES",
    "WEIGHT_FORMATS",
    "SubjectOptions",
    "brought_drafter",
    "find_device",
    "find_subject",
]

LAYOUTS: Mapping[str, Layout] = {"paceline": EngineLayout(), "reference": ReferenceLayout()}


DEFAULT_KV_DTYPE = "bf16"


@dataclass(frozen=True, slots=True)
class SubjectOptions:
    """`weights` "auto": bf16 while the target's take at most half of the device, else nvfp4."""

    model: str
    weights: str = "auto"
    kv_dtype: str = DEFAULT_KV_DTYPE
    drafter: str = "none"
    drafter_config: str | None = None


def find_device(memory: str | None, name: str | None, left: str | None) -> Device:
    """The device that the flags name; this machine's free memory where they name none."""
    if memory is not None and name is not None:
        raise ConfigError("--profile", name, f"--device-memory = {memory} says otherwise; give one of them")
    if left is not None:
        return after_weights(left)
    if name is not None:
        return profile(name)
    return given_memory(memory) if memory is not None else _this_machine()


def brought_drafter(model: str) -> str | None:
    """The drafter whose folder this model has, or that is shipped for it: the last of the table where there are several."""
    home = open_shape(model).folder / "drafters"
    with_folder = [name for name, weights in WEIGHTS_FROM.items() if weights is WeightsFrom.FOLDER]
    return next((name for name in reversed(with_folder) if (home / name / "config.json").is_file()), None)


def _this_machine() -> Device:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        raise ConfigError(
            "--device-memory", "", "this system does not say what is free; give it, such as 16GB"
        ) from None
    return Device("this machine", free, graphs=False)


def find_subject(options: SubjectOptions, device: Device) -> tuple[Subject, str]:
    """What is planned, and the weight format that was taken."""
    if options.drafter not in DRAFTERS:
        raise ConfigError("--drafter", options.drafter, f"unknown; choose one of {', '.join(DRAFTERS)}")
    chosen = kv_format(options.kv_dtype)
    shape = open_shape(options.model)
    model, sizes = _model(shape)
    form = _weights(options.weights, sizes, device)
    subject = Subject(
        model=model,
        weights_bytes=sizes[form.name],
        activation=form.activation,
        kv=_kv_choices(model, chosen),
        drafters=_drafters(shape, model, options, ITEM_BYTES[form.activation]),
        vision=shape.vision,
    )
    return subject, form.name


class _Sizes(dict[str, int]):
    """Bytes of a model's weights by format, each counted when it is asked for."""

    def __init__(self, shape: Shape, model: ModelSpec) -> None:
        from paceline.models import MODELS

        super().__init__()
        self.parts = MODELS.get(str(shape.text["model_type"])).parts(model)

    def __missing__(self, name: str) -> int:
        from paceline.models.sizes import weights_bytes

        self[name] = weights_bytes(self.parts, weight_format(name))
        return self[name]


def _model(shape: Shape) -> tuple[ModelSpec, _Sizes]:
    from paceline.models import MODELS

    try:
        model = MODELS.get(str(shape.text.get("model_type"))).spec(shape.text, shape.name)
    except PacelineError as error:
        raise CheckpointError(f"{shape.path}: {error}") from error
    if LayerKind.FULL not in model.layers:
        raise CheckpointError(
            f"{shape.path}: config.json: layer_types: no full-attention layer; nothing to plan KV for"
        )
    return model, _Sizes(shape, model)


def _weights(name: str, sizes: _Sizes, device: Device) -> WeightFormat:
    if name != "auto":
        return weight_format(name)
    if device.after_weights or 2 * sizes[WIDE.name] <= device.total_bytes or not device.graphs:
        return WIDE
    return NARROW


def _kv_choices(model: ModelSpec, chosen: KvFormat) -> dict[str, KvFormat]:
    """From the most bytes per token to the fewest; none that is wider than bf16, unless it was chosen."""
    widest = KV_FORMATS[DEFAULT_KV_DTYPE].token_bytes(model.kv_heads, model.head_dim)
    sizes = {name: each.token_bytes(model.kv_heads, model.head_dim) for name, each in KV_FORMATS.items()}
    names = [name for name, size in sizes.items() if size <= widest or name == chosen.name]
    return {name: KV_FORMATS[name] for name in sorted(names, key=lambda name: -sizes[name])}


def _drafters(shape: Shape, model: ModelSpec, options: SubjectOptions, item_bytes: int) -> dict[str, DrafterSpec]:
    """The chosen drafter, and all others that this model brings."""
    if options.drafter_config is not None and WEIGHTS_FROM[options.drafter] is not WeightsFrom.FOLDER:
        fix = f"the drafter {options.drafter} has no config of its own; leave it out, or choose another --drafter"
        raise ConfigError("--drafter-config", options.drafter_config, fix)
    found: dict[str, DrafterSpec] = {}
    for name in DRAFTERS:
        if WEIGHTS_FROM[name] is WeightsFrom.NOTHING:
            found[name] = DrafterSpec()
            continue
        given = options.drafter_config if name == options.drafter else None
        try:
            found[name] = DESCRIBERS.get(name)(model, item_bytes, _drafter_config(name, shape, given))
        except ConfigError:  # not one that this model has
            if name == options.drafter:
                raise
    return found


def _drafter_config(name: str, shape: Shape, given: str | None) -> ConfigFile:
    if WEIGHTS_FROM[name] is WeightsFrom.TARGET:
        return ConfigFile(shape.path, shape.text)
    path = Path(given) if given is not None else shape.folder / "drafters" / name
    if given is None and not path.exists():
        fix = f"this model brings none ({path} is missing); give --drafter-config with its config.json"
        raise ConfigError("--drafter", name, fix)
    if not path.exists():
        raise ConfigError("--drafter-config", given, "no such file or folder; give the drafter's config.json")
    return open_config(path)
