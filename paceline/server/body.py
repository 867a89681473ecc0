"""The request body, read within a limit and parsed as strict JSON, and the answers to a body that is refused.

Knows nothing of what the fields mean (`openai.py`).
"""

import asyncio
import json
from typing import NoReturn

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from paceline.core.errors import RequestError
from paceline.server.replies import error_body

# How much, and for how long, of a refused body is still taken in before its connection is closed.
_LINGER_BYTES = 256 * 2**20
_LINGER_S = 5.0


class BodyTooLarge(RequestError):
    """The only refusal whose client may still be sending: see TooLargeResponse."""

    def __init__(self, limit_bytes: int) -> None:
        fix = "send less, or start the server with a larger --max-request-mib"
        super().__init__(f"the body is larger than {limit_bytes} bytes; {fix}", code="request_too_large", status=413)


async def read_json(request: Request, limit_bytes: int) -> dict[str, object]:
    """The body as a JSON object. Raises BodyTooLarge as soon as the limit is known to be exceeded."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit_bytes:
        raise BodyTooLarge(limit_bytes)
    parts: list[bytes] = []
    size_bytes = 0
    async for part in request.stream():
        size_bytes += len(part)
        if size_bytes > limit_bytes:
            raise BodyTooLarge(limit_bytes)
        parts.append(part)
    return _parse(b"".join(parts))


def _parse(raw: bytes) -> dict[str, object]:
    if not raw.strip():
        raise RequestError("the body is empty; send a JSON object")
    try:
        body = json.loads(raw, parse_constant=_not_json)
    except RecursionError:
        raise RequestError(
            "the body is not usable JSON: nested too deeply; send fewer levels of objects and arrays"
        ) from None
    except ValueError as error:
        reason = "a number is too long" if "int_max_str_digits" in str(error) else error
        raise RequestError(f"the body is not valid JSON: {reason}") from None
    if not isinstance(body, dict):
        kind = {list: "an array", str: "a string", type(None): "null", bool: "a boolean"}.get(type(body), "a number")
        raise RequestError(f"the body is {kind}; it must be a JSON object, with the fields of the request")
    return body


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def error_response(error: RequestError) -> Response:
    """The error in OpenAI's shape. ASCII, because a message may quote what is not valid Unicode."""
    headers = {"Retry-After": "1"} if error.status in (429, 503) else None
    return Response(json.dumps(error_body(error)), error.status, headers, "application/json")


class TooLargeResponse(Response):
    """Answers at once, then takes in the rest of the body for a while.

    A connection that is closed with unread data is reset, and the client would never see the answer.
    """

    media_type = "application/json"

    def __init__(self, error: RequestError) -> None:
        super().__init__(json.dumps(error_body(error)), status_code=error.status, headers={"connection": "close"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        left_bytes = _LINGER_BYTES
        try:
            async with asyncio.timeout(_LINGER_S):
                while left_bytes > 0:
                    message = await receive()
                    left_bytes -= len(message.get("body", b""))
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})
