"""The FastAPI app: routes, errors in OpenAI's shape, request ids. One request's steps, in order: `_generate`.

Validation is `openai.py`'s, acceptance `service.py`'s, following the engine `generation.py`'s, streaming `sse.py`'s.
"""

import secrets
import time
from collections.abc import Callable

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.core.errors import RequestError
from paceline.server.body import BodyTooLarge, TooLargeResponse, error_response, read_json
from paceline.server.openai import Ask, AskContext, parse_chat, parse_completion, shown
from paceline.server.replies import ChatReply, CompletionReply, Reply, model_body
from paceline.server.service import Service
from paceline.server.sse import EventStream, cancelled_with_client, failure, whole_body

Parser = Callable[[dict[str, object], AskContext], Ask]

_REQUEST_ID = "paceline.request_id"


def create_app(service: Service) -> FastAPI:
    """The app around a service that its owner starts and stops (`run.py`)."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.add_middleware(_RequestIds)
    app.add_exception_handler(RequestError, _on_request_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_fault)
    created = int(time.time())
    public_id = service.config.public_model_id

    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        ready = service.state == "ready"
        body: dict[str, object] = {
            "status": "ok" if ready else service.state,
            "model": public_id,
            "restarts": service.engine.restarts,
            "requests": service.outstanding,
        }
        if service.engine.drafter_warning is not None:
            body["warnings"] = [service.engine.drafter_warning]
        return JSONResponse(body, status_code=200 if ready else 503)

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [model_body(public_id, created, service.max_context)]})

    @app.get("/v1/models/{model_id:path}")
    async def model(model_id: str) -> Response:
        if model_id != public_id:
            message = f"model {shown(model_id)} is not served here; use {public_id!r}"
            raise RequestError(message, "model", "model_not_found", status=404)
        return JSONResponse(model_body(public_id, created, service.max_context))

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await _generate(service, request, "openai.chat", parse_chat, ChatReply)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await _generate(service, request, "openai.completions", parse_completion, CompletionReply)

    return app


async def _generate(service: Service, request: Request, protocol: str, parse: Parser, shape: type[Reply]) -> Response:
    arrived_s = time.monotonic()
    try:
        body = await read_json(request, service.config.max_request_bytes)
        ask = parse(body, service.context)
        generation = await service.open(ask, arrived_s)
    except ClientDisconnect:
        return Response(status_code=400)  # nobody is left to read it
    except RequestError as error:
        service.log.request_rejected(protocol, error)
        raise
    request.scope[_REQUEST_ID] = f"req-{generation.request.id}"
    # A stream's headers wait for the slot, so that a request which never gets one is answered with a proper status.
    async with cancelled_with_client(generation, request.receive):
        await (generation.begun if ask.stream else generation.ended).wait()
    if problem := failure(generation):
        raise problem
    reply = shape(secrets.token_hex(12), int(time.time()), service.config.public_model_id, ask.include_usage)
    return EventStream(generation, reply) if ask.stream else JSONResponse(whole_body(generation, reply))


def _on_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)  # registered for nothing else
    return TooLargeResponse(error) if isinstance(error, BodyTooLarge) else error_response(error)


def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {404: "unknown_url", 405: "method_not_allowed"}
    message = f"{request.method} {request.url.path}: {error.detail}"
    response = error_response(RequestError(message, code=codes.get(error.status_code), status=error.status_code))
    response.headers.update(error.headers or {})
    return response


def _on_fault(request: Request, error: Exception) -> Response:
    message = "internal error; the server's terminal shows it"
    response = error_response(RequestError(message, code="internal_error", status=500, kind="server_error"))
    # This handler runs outside of _RequestIds.
    response.headers["x-request-id"] = _name(request.scope)
    return response


class _RequestIds:
    """Names every response. An accepted request's name is its number in the log: `req-<request_id>`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", _name(scope).encode())]
            await send(message)

        await self._app(scope, receive, named)


def _name(scope: Scope) -> str:
    return str(scope.get(_REQUEST_ID) or f"rejected-{secrets.token_hex(8)}")
