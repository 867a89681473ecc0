"""How many bytes a model's weights take in a format, from its shapes alone: what the memory planner needs of a model."""

from math import prod

import torch

from paceline.core.errors import ConfigError
from paceline.core.formats import WeightFormat
from paceline.models.base import Part, PartKind
from paceline.quant.weight_formats import weight_format

_ITEM_BYTES = {"float32": 4, "bfloat16": 2}


def weights_bytes(parts: list[Part], form: WeightFormat) -> int:
    """All parts as the runner converts them. Raises ConfigError where the format does not go into a matrix evenly."""
    return sum(_part_bytes(part, form) for part in parts)


def _part_bytes(part: Part, form: WeightFormat) -> int:
    shape = stored_shape(part)
    if part.kind is PartKind.PLAIN:
        return prod(shape) * _ITEM_BYTES["float32"]
    if part.kind is PartKind.EMBED:
        return prod(shape) * _ITEM_BYTES[form.activation]
    names = {PartKind.LINEAR: form.name, PartKind.HEAD: form.head, PartKind.PRECISE: form.precise}
    rows, columns = shape
    chosen = weight_format(names[part.kind])
    if columns % chosen.group:
        fix = f"{part.sources[0][0]} has {columns} columns, not a multiple of {chosen.group}; choose another format"
        raise ConfigError("--weights", form.name, fix)
    return chosen.matrix_bytes(rows, columns, len(part.sources))


def stored_shape(part: Part) -> tuple[int, ...]:
    """The shape of a part's sources, made ready and stacked; no memory is taken for it."""
    pieces = [torch.empty(shape, device="meta") for _, shape in part.sources]
    if part.shape_each is not None:
        pieces = [part.shape_each(piece) for piece in pieces]
    return tuple(torch.cat(pieces).shape)
