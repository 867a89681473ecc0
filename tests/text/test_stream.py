"""Text and counts depend on the tokens only, however they arrive; checked against a whole-text oracle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.text.stream import TextStream
from paceline.text.tokenizer import Tokenizer

ALPHABET = ["the", " END", "Stop", "!", "a", "ab", "aba", "é", "日", "本", "🙂", "\n", "<think>", "<|im_end|>"]
STOPS = ["END", "Stop!", "ab", "abab", "aba", "a", "é", "日本", "🙂", "\ufffd", "the END", "not there"]
texts = st.lists(st.sampled_from(ALPHABET), max_size=12).map("".join)
stops = st.lists(st.sampled_from(STOPS), max_size=4)


def oracle(tokenizer: Tokenizer, ids: list[int], stop: list[str]) -> tuple[str, int, bool]:
    """Text, count and whether it stopped, from whole decodes of every prefix: the slow and obvious way."""
    for n in range(1, len(ids) + 1):
        settled = _settled(b"".join(tokenizer.token_bytes(i) for i in ids[:n]))
        ends = [(settled.find(s) + len(s), -len(s)) for s in stop if s in settled]
        if ends:
            end, negative_length = min(ends)
            return settled[: end + negative_length], n, True
    whole = tokenizer.decode(ids)
    ends = [(whole.find(s) + len(s), -len(s)) for s in stop if s in whole]
    return (whole[: sum(min(ends))] if ends else whole), len(ids), bool(ends)


def _settled(data: bytes) -> str:
    """What of the text no later byte can change: it stays whatever may follow."""
    later = [(data + tail * 3).decode("utf-8", errors="replace") for tail in (b"a", b"\x80", b"\x90", b"\xbf")]
    for cut in range(4):
        text = data[: len(data) - cut].decode("utf-8", errors="replace")
        if all(one.startswith(text) for one in later):
            return text
    raise AssertionError(data)


def run(tokenizer: Tokenizer, runs: list[list[int]], stop: list[str]) -> tuple[str, int, bool, list[str]]:
    stream = TextStream(tokenizer, stop)
    deltas = [stream.push(ids) for ids in runs]
    deltas.append(stream.finish())
    return "".join(deltas), stream.n, stream.stopped, deltas


@st.composite
def split(draw: st.DrawFn, ids: list[int]) -> list[list[int]]:
    edges = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    return [ids[a:b] for a, b in zip([0, *edges], [*edges, len(ids)], strict=True)]


def test_any_split_gives_the_whole_decode(tokenizer: Tokenizer) -> None:
    @given(st.data(), texts, stops)
    def check(data: st.DataObject, text: str, stop: list[str]) -> None:
        _check(data, tokenizer, tokenizer.encode(text), stop)

    check()


def test_any_ids_at_all(tokenizer: Tokenizer) -> None:
    @given(st.data(), st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=25), stops)
    def check(data: st.DataObject, ids: list[int], stop: list[str]) -> None:
        _check(data, tokenizer, ids, stop)

    check()


def _check(data: st.DataObject, tokenizer: Tokenizer, ids: list[int], stop: list[str]) -> None:
    expected, n, stopped = oracle(tokenizer, ids, stop)
    for runs in ([ids], [[i] for i in ids], data.draw(split(ids))):
        text, got_n, got_stopped, deltas = run(tokenizer, runs, stop)
        assert text == expected
        assert (got_n, got_stopped) == (n, stopped)
        sent = ""
        for delta in deltas:
            delta.encode("utf-8")
            sent += delta
            assert expected.startswith(sent)


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("abc", ["b"], "a"),
        ("abc", ["abc", "b"], "a"),
        ("abc", ["abc", "bc"], ""),
        ("aabaab", ["aabaaa"], "aabaab"),
        ("ababac", ["abac"], "ab"),
        ("xaab", ["aab"], "x"),
        ("stop", ["stopped"], "stop"),
    ],
)
def test_which_stop_string_counts(tokenizer: Tokenizer, text: str, stop: list[str], expected: str) -> None:
    ids = [tokenizer.encode(char)[0] for char in text]
    assert run(tokenizer, [ids], stop)[0] == expected
    assert run(tokenizer, [[i] for i in ids], stop)[0] == expected


def test_a_part_of_a_stop_string_is_held_back_then_given(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, ["</end>"])
    assert [stream.push(tokenizer.encode(part)) for part in ("a</", "e", "nX")] == ["a", "", "</enX"]
    assert stream.push(tokenizer.encode("b</en")) == "b"
    assert stream.finish() == "</en"


def test_half_a_character_waits_and_ends_as_replacement(tokenizer: Tokenizer) -> None:
    first, second, *_ = ids = [i for byte in "€".encode() for i in _byte_token(tokenizer, byte)]
    stream = TextStream(tokenizer, [])
    assert [stream.push([i]) for i in ids] == ["", "", "€"]
    assert stream.push([first, second]) == ""
    assert stream.finish() == "\ufffd"
    assert stream.n == 5


def test_the_token_that_completes_the_stop_string_counts(tokenizer: Tokenizer) -> None:
    ids = [tokenizer.encode(char)[0] for char in "abSTOPcd"]
    stream = TextStream(tokenizer, ["STOP"])
    assert stream.push(ids) == "ab"
    assert (stream.n, stream.stopped) == (6, True)
    assert stream.push(ids) == ""
    assert (stream.n, stream.finish()) == (6, "")


def _byte_token(tokenizer: Tokenizer, byte: int) -> list[int]:
    return [i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == bytes([byte])][:1]
