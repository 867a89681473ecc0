"""The text side of a Hugging Face folder: tokenizer.json, chat template, and how replies start and end.

Reads small JSON files only, needs neither torch nor transformers, and renders nothing. Every file may be absent; one
that is there and not what it should be is a CheckpointError.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paceline.checkpoint.base import Config, Generation, TextParts, unreadable
from paceline.core.errors import CheckpointError

Json = dict[str, Any]


def read_json(file: Path) -> Json | None:
    """A JSON object; None when there is no such file."""
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(file, error) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not JSON ({error}); download the file again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: not a JSON object; download the file again")
    return value


def folder_text(folder: Path, config: Config) -> TextParts:
    tokenizer = read_json(folder / "tokenizer.json")
    settings = read_json(folder / "tokenizer_config.json") or {}
    added = _added_tokens(tokenizer or {})
    tokens = {role: _token(folder, settings, config, added, role) for role in ("bos", "eos", "pad")}
    defaults = read_json(folder / "generation_config.json") or {}
    ends = [*token_ids(defaults.get("eos_token_id")), *token_ids(config.get("eos_token_id"))]
    ends += [index for index, token in added.items() if token == tokens["eos"]]
    generation = Generation(
        eos_ids=tuple(dict.fromkeys(ends)),
        bos_token=tokens["bos"],
        eos_token=tokens["eos"],
        pad_token=tokens["pad"],
        add_bos=tokens["bos"] is not None and _adds_bos(settings, tokenizer or {}, tokens["bos"]),
        temperature=_number(defaults, "temperature"),
        top_p=_number(defaults, "top_p"),
        top_k=None if (top_k := _number(defaults, "top_k")) is None else int(top_k),
        min_p=_number(defaults, "min_p"),
    )
    raw = None if tokenizer is None else (folder / "tokenizer.json").read_bytes()
    return TextParts(raw, _chat_template(folder, settings), generation)


def _chat_template(folder: Path, settings: Json) -> str | None:
    """chat_template.jinja wins, then the older chat_template.json, then tokenizer_config.json."""
    file = folder / "chat_template.jinja"
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: cannot be read ({error}); download the file again") from error
    template = (read_json(folder / "chat_template.json") or settings).get("chat_template")
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default", next(iter(named.values()), None))
    if template is not None and not isinstance(template, str):
        raise CheckpointError(f"{folder}: chat_template is neither text nor a list of named texts; download it again")
    return template


def _added_tokens(tokenizer: Json) -> dict[int, str]:
    entries = tokenizer.get("added_tokens")
    out: dict[int, str] = {}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("id"), int) and isinstance(entry.get("content"), str):
            out[entry["id"]] = entry["content"]
    return out


def _token(folder: Path, settings: Json, config: Config, added: dict[int, str], role: str) -> str | None:
    """The tokenizer's own settings, which may say null, before the id in config.json."""
    key = f"{role}_token"
    for source in (settings, read_json(folder / "special_tokens_map.json") or {}):
        if key in source:
            value = source[key]
            value = value.get("content") if isinstance(value, dict) else value
            return value if isinstance(value, str) else None
    ids = token_ids(config.get(f"{key}_id"))
    return added.get(ids[0]) if ids else None


def _adds_bos(settings: Json, tokenizer: Json, bos: str) -> bool:
    """`add_bos_token` where it is given, else whether the tokenizer's post-processor puts BOS in front."""
    given = settings.get("add_bos_token")
    if isinstance(given, bool):
        return given
    processor = tokenizer.get("post_processor")
    steps = [processor] if isinstance(processor, dict) else []
    steps += [step for step in (steps[0].get("processors") or [] if steps else []) if isinstance(step, dict)]
    for step in steps:
        single = step.get("single")
        first = single[0] if isinstance(single, list) and single else None
        special = first.get("SpecialToken") if isinstance(first, dict) else None
        if isinstance(special, dict) and special.get("id") == bos:
            return True
    return False


def token_ids(value: object) -> list[int]:
    """A config's `…_token_id`, which may be one id, several or null (and −1, an old way to say null)."""
    items = value if isinstance(value, list) else [] if value is None else [value]
    ids: list[int] = []
    for item in items:
        if not isinstance(item, int) or isinstance(item, bool):
            raise CheckpointError(
                f"config.json: a token id = {value!r}: a whole number, a list of them, or null is needed"
            )
        if item >= 0:
            ids.append(item)
    return ids


def _number(source: Json, key: str) -> float | None:
    value = source.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
