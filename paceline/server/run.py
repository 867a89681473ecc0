"""The server's life: bind the port, start the engine, serve, stop in order.

HTTP is up before the engine is, so that /health can say `starting`. A signal cancels what runs (each request gets its
terminal line and its client an error), ends the engine, then closes the log with `server_stop`.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import msgspec
import uvicorn

from paceline.core.config import EngineConfig
from paceline.core.errors import ConfigError
from paceline.engine.api import EngineClient
from paceline.server.app import create_app
from paceline.server.config import ServerConfig
from paceline.server.reqlog import RequestLog
from paceline.server.service import Service
from paceline.text.template import ChatTemplate
from paceline.text.tokenizer import Tokenizer

# How long cancelled requests may take to reach their terminal line, then connections to deliver what they hold.
_CANCEL_S = 5.0
_DELIVER_S = 3


def run(engine_config: EngineConfig, backend_factory: str, config: ServerConfig) -> None:
    """Serves until SIGINT or SIGTERM. Raises ConfigError, CheckpointError or EngineError when it cannot start."""
    tokenizer = Tokenizer.load(engine_config.model_folder)
    template = ChatTemplate.load(engine_config.model_folder, tokenizer)
    with bind(config.host, config.port) as listener:
        config = msgspec.structs.replace(config, port=listener.getsockname()[1])
        log = RequestLog(config, engine_config)
        engine = EngineClient(engine_config, backend_factory, on_stats=log.throughput, on_restart=log.engine_restart)
        service = Service(engine, tokenizer, template, engine_config, config, log)
        asyncio.run(serve(service, listener, lambda: print(_ready_line(config), flush=True)))


def bind(host: str, port: int) -> socket.socket:
    """A socket that holds the port; port 0 takes a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError("--host", host, f"{error.strerror}; use an address of this machine") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Two servers may bind one port with SO_REUSEADDR until one of them listens.
        listener.listen()
    except OSError as error:
        listener.close()
        fix = f"cannot listen on {host}:{port} ({error.strerror}); stop what uses it, or choose another --port"
        raise ConfigError("--port", port, fix) from None
    return listener


async def serve(service: Service, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serves on `listener` until a signal, or until the engine cannot start."""
    server = _Server(service)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    starting = asyncio.create_task(service.start())
    await asyncio.wait({serving, starting}, return_when=asyncio.FIRST_COMPLETED)
    failure = starting.exception() if starting.done() else None
    if starting.done() and failure is None:
        on_ready()
    else:
        # Either the start failed or a signal came first; both end here.
        server.should_exit = True
    try:
        await serving
    finally:
        starting.cancel()
        await service.stop(server.stop_reason)
    if failure is not None:
        raise failure


class _Server(uvicorn.Server):
    """uvicorn with our order of stopping: requests first, then connections. Ends with a return, not by the signal."""

    def __init__(self, service: Service) -> None:
        super().__init__(
            uvicorn.Config(
                create_app(service),
                lifespan="off",
                access_log=False,
                log_level="warning",
                timeout_graceful_shutdown=_DELIVER_S,
            )
        )
        self.stop_reason = "start failed"
        self._service = service

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for one in signals:
            loop.add_signal_handler(one, self._on_signal, one)
        try:
            yield
        finally:
            for one in signals:
                loop.remove_signal_handler(one)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CANCEL_S):
                await self._service.cancel_all("shutdown")
        await super().shutdown(sockets)

    def _on_signal(self, which: signal.Signals) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self.stop_reason = which.name


def _ready_line(config: ServerConfig) -> str:
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"paceline serves {config.public_model_id} at http://{host}:{config.port}/v1"
