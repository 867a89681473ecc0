"""The parent's end of one engine process: start it, talk to it, see it end, clean up.

One `Child` is one incarnation with a socket path of its own; `api.py` decides when to make another. Nothing here blocks
the event loop.
"""

import asyncio
import multiprocessing
import shutil
import signal
import tempfile

import msgspec
import zmq
import zmq.asyncio

from paceline.core.config import EngineConfig
from paceline.core.messages import Command, Event
from paceline.engine import process

# How long a terminated process may take before it is killed.
TERMINATE_S = 2.0


class Child:
    """Use it in this order: `start`, then `send` and `receive` while it lives, `close` at the end in any case."""

    def __init__(self, context: zmq.asyncio.Context, factory: str, config: EngineConfig) -> None:
        self._folder = tempfile.mkdtemp(prefix="paceline-")
        endpoint = f"ipc://{self._folder}/engine"
        self._socket = context.socket(zmq.PAIR)
        process.unlimit(self._socket)
        self._socket.linger = 0
        self._socket.bind(endpoint)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
        # A spawned process inherits no event loop, no threads and no device state. As a daemon it also ends at our exit.
        self._process = multiprocessing.get_context("spawn").Process(
            target=process.main, args=(endpoint, factory, config), name="paceline-engine", daemon=True
        )

    async def start(self) -> None:
        await asyncio.to_thread(self._process.start)

    def send(self, command: Command) -> None:
        """Hands the command over at once. To a process that has just died it is lost, which `wait_exit` will show."""
        self._socket.send(self._encoder.encode(command))

    async def receive(self) -> Event:
        return self._decoder.decode(await self._socket.recv())

    async def wait_exit(self) -> None:
        loop, sentinel = asyncio.get_running_loop(), self._process.sentinel
        exited = loop.create_future()

        def on_exit() -> None:
            loop.remove_reader(sentinel)
            exited.set_result(None)

        loop.add_reader(sentinel, on_exit)
        try:
            await exited
        finally:
            loop.remove_reader(sentinel)

    async def close(self, grace_s: float) -> str:
        """Waits `grace_s` for the process to leave by itself, then makes it leave; removes every trace.

        Returns how it ended, for a process that could not say so itself.
        """
        try:
            if self._process.pid is None:
                return "engine process was not started"
            return _describe(await asyncio.to_thread(self._end, grace_s))
        finally:
            self._socket.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self, grace_s: float) -> int:
        self._process.join(grace_s)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(TERMINATE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        code = self._process.exitcode
        assert code is not None
        self._process.close()
        return code


def _describe(exit_code: int) -> str:
    if exit_code >= 0:
        return f"engine process left with exit code {exit_code}"
    try:
        return f"engine process killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"engine process killed by signal {-exit_code}"
