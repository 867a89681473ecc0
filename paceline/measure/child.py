"""The server process of one point: start it, wait until it is ready, stop it, kill it if it will not stop.

Knows the process, its request log and /health; not what is asked of the server. Times are in seconds.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import httpx

from paceline.core.errors import PacelineError
from paceline.core.units import format_seconds
from paceline.measure.reqlog import RequestLog

BOOT_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 15.0
_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1


class ServerFailed(PacelineError):
    """The server did not start, or ended before it was asked to; the message holds its last words."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """A running server; leaving the `with` block stops it."""

    def __init__(self, command: list[str], port: int, log: Path, output: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log, self._output = log, output
        with output.open("wb") as sink:
            # A session of its own: Ctrl-C on the terminal must reach this program only, which then stops the server.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait_ready(self, timeout_s: float = BOOT_TIMEOUT_S) -> dict[str, object]:
        """Returns the `server_start` line once /health answers 200 as well."""
        deadline = time.monotonic() + timeout_s
        with httpx.Client(base_url=self.url, timeout=5, trust_env=False) as http:
            while time.monotonic() < deadline:
                self.check_alive()
                start = RequestLog(self._log).server_start
                if start is not None and _healthy(http):
                    return start
                time.sleep(_POLL_S)
        raise ServerFailed(f"the server was not ready after {format_seconds(timeout_s)}: {self.last_words()}")

    def wait_idle(self, timeout_s: float) -> None:
        """Waits for the throughput line that closes the work so far; without one the batch figures are incomplete."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not RequestLog(self._log).idle_after_last_request():
            self.check_alive()
            time.sleep(_POLL_S)

    def check_alive(self) -> None:
        if self._process.poll() is not None:
            raise ServerFailed(f"the server ended with code {self._process.returncode}: {self.last_words()}")

    def last_words(self) -> str:
        """The last line that the server printed: where programs say what was wrong."""
        lines = [line.strip() for line in self._output.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1][:400] if lines else "it printed nothing"

    def stop(self) -> None:
        """Asks with SIGTERM, then kills the whole session: an engine process must not outlive its point."""
        try:
            if self._process.poll() is None:
                self._process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(STOP_TIMEOUT_S)
        finally:
            self._kill_session()

    def _kill_session(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _healthy(http: httpx.Client) -> bool:
    try:
        return http.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def _end_with_parent() -> None:
    """Runs in the child: a measuring program that is killed must not leave a server behind that slows the next run."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
