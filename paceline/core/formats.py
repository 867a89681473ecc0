"""How many bytes a storage format takes, as data: the planes of a KV head vector and of a weight matrix.

A plane is one array of equal items, each standing for a run of `group` elements. Codecs allocate one tensor per plane, and
the memory planner adds the same planes up, so that neither can differ from the other.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plane:
    """One item of `bits` bits for each `group` elements, a run that is cut short counting as a whole; `group` 0: one item
    for the whole row. `dtype` is the torch name of the tensor that holds it (two 4-bit codes share one uint8)."""

    name: str
    dtype: str
    bits: int
    group: int = 1

    def row_bytes(self, elements: int) -> int:
        items = -(-elements // self.group) if self.group else 1
        return -(-items * self.bits // 8)


@dataclass(frozen=True, slots=True)
class KvFormat:
    """What a key and a value of one KV head are stored as. Bytes of a head vector do not depend on the others."""

    name: str
    key: tuple[Plane, ...]
    value: tuple[Plane, ...]

    def token_bytes(self, kv_heads: int, head_dim: int) -> int:
        """One token of one full-attention layer."""
        return kv_heads * sum(plane.row_bytes(head_dim) for plane in (*self.key, *self.value))


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """What a matrix [N, K] is stored as. `group`: K must be a multiple of it. `tensor_bytes` come on top for each matrix of
    the checkpoint that is part of this one.

    `head` and `precise` name the formats of the output head and of tiny, sensitive matrices in a run of this format;
    `activation` is the torch name of its activations' dtype.
    """

    name: str
    planes: tuple[Plane, ...]
    head: str
    precise: str
    activation: str = "bfloat16"
    group: int = 1
    tensor_bytes: int = 0

    def matrix_bytes(self, rows: int, columns: int, tensors: int = 1) -> int:
        return rows * sum(plane.row_bytes(columns) for plane in self.planes) + tensors * self.tensor_bytes
