"""The prepared folder: everything but the weights of a checkpoint, in one known shape, made once and kept in the cache.

`<cache>/models/<name>-<weights_id[:12]>/` holds config.json (Hugging Face keys), tokenizer.json and
chat_template.jinja (where the source has them), generation.json and source.json. Both processes read it; weights stay
where they are (source.json names the path). No torch; a second call reads two small JSON files and the source's file
times. Sizes are bytes, times nanoseconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

from paceline.checkpoint.base import Reader, open_checkpoint
from paceline.core.errors import CheckpointError, ConfigError, PacelineError

# Raised when the content of a prepared folder changes for the same source.
_LAYOUT = 1
_PARTS = ("config.json", "generation.json", "tokenizer.json", "chat_template.jinja")
_WATCHED = (".json", ".jinja", ".safetensors", ".gguf")


def cache_folder() -> Path:
    """`$PACELINE_CACHE`, else the user's cache folder + `paceline`."""
    given = os.environ.get("PACELINE_CACHE")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline"


def cache_failure(folder: Path, error: OSError) -> PacelineError:
    reason = error.strerror or str(error)
    return ConfigError(
        "cache folder", folder, f"cannot be written ({reason}); set PACELINE_CACHE to a folder with room"
    )


def prepare(source: Path, cache: Path | None = None) -> Path:
    """The prepared folder of a checkpoint folder or file, made when it is not there yet."""
    source = Path(os.path.abspath(source))
    models = (cache or cache_folder()) / "models"
    note = models / ".index" / f"{hashlib.sha256(str(source).encode()).hexdigest()[:24]}.json"
    stamp = _stamp(source)
    found = _known(models, note, stamp, source)
    if found is not None:
        return found
    reader = open_checkpoint(source)
    try:
        folder = _write(reader, source, models)
        _replace_text(note, json.dumps({"source": str(source), "stamp": stamp, "folder": folder.name}))
    except OSError as error:
        raise cache_failure(models, error) from error
    return folder


def _stamp(source: Path) -> list[list[object]]:
    """Name, size and time of each of the source's files: as long as these stay, so does the prepared folder."""
    try:
        files = sorted(source.iterdir()) if source.is_dir() else [source]
        stats = [(file.name, file.stat()) for file in files if file.suffix.lower() in _WATCHED]
    except OSError as error:
        reason = error.strerror or error
        raise CheckpointError(f"{source}: cannot be read ({reason}); give a checkpoint folder or file") from error
    return [["layout", _LAYOUT, 0], *([name, stat.st_size, stat.st_mtime_ns] for name, stat in stats)]


def _known(models: Path, note: Path, stamp: list[list[object]], source: Path) -> Path | None:
    """The folder that the index names, if the source is unchanged and the folder is whole and still speaks of it."""
    try:
        known = json.loads(note.read_bytes())
        if known["stamp"] != stamp:
            return None
        folder = models / Path(known["folder"]).name
        about = json.loads((folder / "source.json").read_bytes())
        whole = all((folder / name).stat().st_size == size for name, size in about["holds"].items())
        return folder if whole and about["path"] == str(source) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(reader: Reader, source: Path, models: Path) -> Path:
    weights_id, parts = reader.weights_id(), _parts(reader)
    about = {
        "path": str(source),
        "format": reader.format,
        "weights_id": weights_id,
        "name": _name(reader),
        "size_bytes": sum(file.stat().st_size for file in reader.files()),
        "holds": {name: len(content) for name, content in parts.items()},
    }
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", _name(reader)).strip("-.")[:80] or "model"
    folder = models / f"{stem}-{weights_id[:12]}"
    if folder.exists() and not _same(folder, parts):
        # The same weights with another tokenizer or template: a folder beside it, so that neither user is surprised.
        folder = models / f"{folder.name}-{_digest(parts)[:8]}"
    if not _same(folder, parts):
        _build(folder, parts, about)
    _replace_text(folder / "source.json", json.dumps(about, indent=1))
    return folder


def _build(folder: Path, parts: dict[str, bytes], about: dict[str, object]) -> None:
    """Written beside its place and renamed into it whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        for name, content in parts.items():
            (building / name).write_bytes(content)
        _replace_text(building / "source.json", json.dumps(about, indent=1))
        building.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(building, folder)
    except OSError:
        # Another process may have put the same folder there in the meantime.
        if not _same(folder, parts):
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _digest(parts: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in sorted(parts.items()):
        digest.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
    return digest.hexdigest()


def _parts(reader: Reader) -> dict[str, bytes]:
    text = reader.text()
    parts = {
        "config.json": json.dumps(reader.config(), indent=1, sort_keys=True).encode(),
        "generation.json": json.dumps(text.generation.to_json(), indent=1).encode(),
    }
    if text.tokenizer is not None:
        parts["tokenizer.json"] = text.tokenizer
    if text.chat_template is not None:
        parts["chat_template.jinja"] = text.chat_template.encode()
    return parts


def _name(reader: Reader) -> str:
    return reader.path.stem if reader.path.suffix.lower() == ".gguf" else reader.path.name


def _same(folder: Path, parts: dict[str, bytes]) -> bool:
    """The folder holds exactly these parts; files that others keep there, such as converted weights, do not count."""
    try:
        names = {name for name in _PARTS if (folder / name).exists()}
        return names == set(parts) and all((folder / name).read_bytes() == part for name, part in parts.items())
    except OSError:
        return False


def _replace_text(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".", delete=False, encoding="utf-8") as stream:
        stream.write(text)
    os.replace(stream.name, file)
