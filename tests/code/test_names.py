"""Concrete names stay where they belong: in their own file, in their table, and where a person chooses among them.

A drafter, a format or a model that is named anywhere else costs a change there when the next one is added. Looked at are
string constants and identifiers; docstrings and comments may give examples.
"""

import ast
import re

import pytest

from paceline.drafters import DRAFTERS
from paceline.models import MODELS
from paceline.quant import WEIGHT_CODECS
from paceline.quant.kv_formats import KV_FORMATS
from paceline.quant.weight_formats import WEIGHT_FORMATS
from tests.code.modules import modules, tree_of

CLI = {"paceline.cli.*"}  # what a person may write, in help texts and defaults
DEFAULTS = {"paceline.build"}
READERS = {"paceline.checkpoint.*"}  # what files call things: architectures, and the names of models to fetch
TRAIN = {"paceline.train.*"}  # recipes make concrete models

WHERE: dict[str, set[str]] = {
    "ngram": {"paceline.drafters", "paceline.drafters.ngram"} | CLI | DEFAULTS,
    "mtp": {"paceline.drafters", "paceline.drafters.mtp"} | CLI | READERS | TRAIN,
    "dflash": {"paceline.drafters", "paceline.drafters.dflash", "paceline.drafters.block_config"} | CLI | TRAIN,
    "dflash2": {"paceline.drafters", "paceline.drafters.dflash2"} | CLI | TRAIN,
    "qwen35": {"paceline.models", "paceline.models.qwen35"} | READERS,
    "qwen3_5": {"paceline.models", "paceline.models.qwen35"} | READERS | TRAIN,
    "qwen3": {"paceline.models", "paceline.models.qwen3"} | READERS | TRAIN,
    "llama": {"paceline.models", "paceline.models.llama", "paceline.models.qwen3"} | READERS,
    "int8": {"paceline.quant.*"} | CLI,  # a format may name another for its head
    "int4": {"paceline.quant.*"} | CLI,
    "fp8": {"paceline.quant.*"} | CLI,
    "nvfp4": {"paceline.quant.*"} | CLI,
    "k8v4": {"paceline.quant.*"} | CLI,
    "smollm2": {"paceline.checkpoint.pull", "paceline.checkpoint.shapes"} | CLI,
}


def names_in(module: str) -> set[str]:
    """Every string constant that is not a docstring, every identifier (dtypes of torch aside), every imported module."""
    found: set[str] = set()
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree_of(module)):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                found.add(text)
            case ast.Attribute(value=ast.Name(id="torch")):
                pass
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.arg(arg=name) | ast.alias(name=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.ImportFrom(module=str(name)):
                found.add(name)
            case _:
                pass
    return found


def mentions(name: str, text: str) -> bool:
    """As a word: not llama in llama3, nor int8 in uint8; but qwen3_5 in qwen3_5_text, and ngram in NgramDrafter."""
    camel = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text).lower()
    return re.search(rf"(?<![a-z0-9]){name}(?![a-z0-9])", camel) is not None


def allowed(module: str, name: str) -> bool:
    package = ".".join(module.split(".")[:2])
    return module in WHERE[name] or f"{package}.*" in WHERE[name]


@pytest.mark.parametrize("name", WHERE)
def test_a_concrete_name_stays_where_it_belongs(name: str) -> None:
    found = {
        f"{module}: {text[:60]!r}"
        for module in modules()
        if not allowed(module, name)
        for text in names_in(module)
        if mentions(name, text)
    }
    assert not found


@pytest.mark.parametrize("name", WHERE)
def test_every_name_is_still_one(name: str) -> None:
    """A name that is nowhere any more should leave this list."""
    assert any(mentions(name, text) for module in modules() if allowed(module, name) for text in names_in(module))


def test_every_name_of_the_tables_is_watched() -> None:
    """`none`, fp32 and bf16 are words of their own: nothing to draft, and the dtypes of everything else."""
    free = {"none", "fp32", "bf16"}
    for table in (DRAFTERS, MODELS, WEIGHT_CODECS, WEIGHT_FORMATS, KV_FORMATS):
        for name in set(table) - free:
            assert any(mentions(watched, name) for watched in WHERE), name


@pytest.mark.parametrize(
    "name,text,found",
    [("llama", "llama3", False), ("llama", "LlamaForCausalLM", True), ("int8", "uint8", False), ("ngram", "NgramDrafter", True),
     ("qwen3_5", "qwen3_5_text", True), ("qwen3", "qwen35", False), ("int8", "choose bf16 or int8", True)],
)  # fmt: skip
def test_mentions(name: str, text: str, found: bool) -> None:
    assert mentions(name, text) == found
