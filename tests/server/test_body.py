"""What a body that is no JSON object is answered with: what it is, and what to send."""

import pytest

from paceline.core.errors import RequestError
from paceline.server.body import _parse


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "the body is empty; send a JSON object"),
        (b" \n", "the body is empty; send a JSON object"),
        (b"[1]", "the body is an array; it must be a JSON object, with the fields of the request"),
        (b'"x"', "the body is a string; it must be a JSON object, with the fields of the request"),
        (b"3.5", "the body is a number; it must be a JSON object, with the fields of the request"),
        (b"false", "the body is a boolean; it must be a JSON object, with the fields of the request"),
        (b"null", "the body is null; it must be a JSON object, with the fields of the request"),
        (b"[" * 200_000, "the body is not usable JSON: nested too deeply; send fewer levels of objects and arrays"),
        (b'{"a": NaN}', "the body is not valid JSON: NaN is not a JSON number"),
        (b"1" * 5000, "the body is not valid JSON: a number is too long"),
    ],
)
def test_bodies_that_are_no_object(raw: bytes, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        _parse(raw)
    assert caught.value.message == message
