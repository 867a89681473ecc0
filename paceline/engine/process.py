"""The engine in a process of its own: what the child runs.

Commands come in and events go out as msgpack messages on a ZeroMQ PAIR socket that the parent has bound. Between rounds
the child takes whatever commands have arrived; with nothing to do it sleeps until the next one. `child.py` is the
parent's end. Only names from the configuration reach this file, never a backend's type.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

import msgspec
import zmq

from paceline.core.backend import Backend
from paceline.core.config import EngineConfig
from paceline.core.errors import PacelineError
from paceline.core.messages import Cancel, Command, Cut, Event, Fault, Ready, Shutdown, Submit
from paceline.engine.loop import Engine

BackendFactory = Callable[[EngineConfig], Backend]

# How long the last messages may take to leave when the process ends.
LINGER_MS = 2000


def main(endpoint: str, factory: str, config: EngineConfig) -> None:
    """Runs the engine until Shutdown (exit code 0) or a fault (1). `factory` is "module:function"."""
    # Ctrl-C reaches the whole terminal group; the parent decides what it means and sends Shutdown.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, name="parent-watch", daemon=True).start()
    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    unlimit(socket)
    socket.linger = LINGER_MS
    socket.connect(endpoint)
    encoder = msgspec.msgpack.Encoder()

    def publish(event: Event) -> None:
        socket.send(encoder.encode(event))

    try:
        backend = _find(factory)(config)
        publish(Ready(backend.facts()))
        _rounds(Engine(backend, config, publish), socket)
        backend.close()
    except PacelineError as error:
        publish(Fault(_one_line(str(error))))
        sys.exit(1)
    except Exception as error:
        publish(Fault(_one_line(f"{type(error).__name__}: {error}")))
        raise  # to stderr, with its traceback
    finally:
        socket.close()
        context.term()


def unlimit(socket: zmq.Socket[Any]) -> None:
    """Lifts the 1,000-message bound: a full queue would stop the engine, and the requests in flight bound it already."""
    socket.sndhwm = 0
    socket.rcvhwm = 0


def _rounds(engine: Engine, socket: zmq.Socket[bytes]) -> None:
    decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
    while True:
        timeout_ms = 0 if engine.busy else None
        while socket.poll(timeout_ms):
            timeout_ms = 0
            match decoder.decode(socket.recv()):
                case Submit(request):
                    engine.submit(request)
                case Cut(request_id, n):
                    engine.cut(request_id, n)
                case Cancel(request_id, cause):
                    engine.cancel(request_id, cause)
                case Shutdown():
                    engine.shutdown()
                    return
        engine.step()


def _find(factory: str) -> BackendFactory:
    module, _, function = factory.partition(":")
    return cast(BackendFactory, getattr(import_module(module), function))


def _leave_with_parent() -> None:
    # A thread, because the main one may be inside a long step or a load when the parent is killed.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _one_line(text: str) -> str:
    return " ".join(text.split())
