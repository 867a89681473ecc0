"""What the flags ask to compare, the grid that follows, the limits of the settings, and what makes them another campaign."""

import msgspec
import pytest

from paceline.core.errors import ConfigError
from paceline.measure.settings import BenchSettings, Point, Speculation, parse_numbers, parse_speculation

NGRAM = parse_speculation("ngram", None)


@pytest.mark.parametrize(
    ("drafters", "draft_tokens", "compared"),
    [
        ("ngram", None, "none ngram:3 ngram:7"),
        ("ngram", "7,3", "ngram:3 ngram:7"),
        ("none,ngram", "7,3", "none ngram:3 ngram:7"),
        ("ngram,mtp,none", "0,5", "none ngram:5 mtp:5"),
        ("mtp:3,dflash2:7", None, "none mtp:3 dflash2:7"),
        ("dflash2:7,mtp:1,dflash2:5, mtp:4", None, "none dflash2:5 dflash2:7 mtp:1 mtp:4"),
        ("mtp:2,ngram", "0,4", "none mtp:2 ngram:4"),
        ("ngram:5,ngram", "3,7", "ngram:3 ngram:5 ngram:7"),
        ("none", None, "none"),
        ("none", "0", "none"),
        ("ngram", "0", "none"),
    ],
)
def test_what_is_compared(drafters: str, draft_tokens: str | None, compared: str) -> None:
    assert " ".join(map(str, parse_speculation(drafters, draft_tokens))) == compared


@pytest.mark.parametrize(
    ("drafters", "draft_tokens", "words"),
    [
        ("ngram,", None, "--drafter = '': write names with commas"),
        (":3", None, "--drafter = ':3': write names"),
        ("mtp:x", None, "--drafter = mtp:x: after the colon stands a draft length from 1 to 15"),
        ("mtp:0", None, "--drafter = mtp:0: after the colon"),
        ("mtp:16", None, "--drafter = mtp:16: after the colon"),
        ("none:3", None, "--drafter = none:3: drafts nothing"),
        ("none", "3", "--draft-tokens = 3: no drafter of --drafter none takes"),
        ("mtp:3,none", "0,7", "--draft-tokens = 0,7: no drafter of --drafter mtp:3,none takes"),
        ("ngram", "16", "--draft-tokens = 16: must be from 0 .no speculation. to 15"),
        ("ngram", "-1", "--draft-tokens = -1: must be"),
        ("ngram", "", "--draft-tokens = : write whole numbers"),
        ("ngram", "3,3", "--draft-tokens = 3,3: names a number twice"),
    ],
)
def test_what_cannot_be_compared(drafters: str, draft_tokens: str | None, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^{words}"):
        parse_speculation(drafters, draft_tokens)


def test_no_drafts_are_measured_once_at_each_c() -> None:
    points = BenchSettings(model="m", speculation=parse_speculation("ngram,mtp:2", "0,3"), concurrency=(2, 1)).points()
    assert points == [
        Point("none", 0, 1), Point("ngram", 3, 1), Point("mtp", 2, 1),
        Point("none", 0, 2), Point("ngram", 3, 2), Point("mtp", 2, 2),
    ]  # fmt: skip
    assert points[1].name == "ngram-k3-c1"


def test_numbers() -> None:
    assert parse_numbers("--concurrency", "4,1") == (4, 1)
    with pytest.raises(ConfigError, match="--concurrency = 1,x: write whole numbers"):
        parse_numbers("--concurrency", "1,x")


@pytest.mark.parametrize(
    ("change", "flag"),
    [
        ({"speculation": ()}, "--drafter"),
        ({"speculation": NGRAM + NGRAM[1:2]}, "--drafter"),
        ({"speculation": (Speculation("ngram", 0),)}, "--drafter"),
        ({"speculation": (Speculation("none", 3),)}, "--drafter"),
        ({"concurrency": (0, 1)}, "--concurrency"),
        ({"concurrency": ()}, "--concurrency"),
        ({"concurrency": (1, 1)}, "--concurrency"),
        ({"prompts": 0}, "--prompts"),
        ({"seeds": 0}, "--seeds"),
        ({"max_tokens": 1}, "--max-tokens"),
        ({"max_context": 0}, "--max-context"),
        ({"temperature": -0.1}, "--temperature"),
    ],
)
def test_wrong_settings_name_their_flag(change: dict[str, object], flag: str) -> None:
    base = msgspec.to_builtins(BenchSettings(model="m", speculation=NGRAM)) | change
    with pytest.raises((ConfigError, msgspec.ValidationError), match=flag):
        msgspec.convert(msgspec.to_builtins(base), type=BenchSettings)


def test_every_setting_changes_the_fingerprint() -> None:
    base = BenchSettings(model="m", speculation=NGRAM)
    others = [
        msgspec.structs.replace(base, model="n"),
        msgspec.structs.replace(base, speculation=NGRAM[:2]),
        msgspec.structs.replace(base, weights="int8"),
        msgspec.structs.replace(base, temperature=0.5),
        msgspec.structs.replace(base, max_tokens=64),
    ]
    assert len({one.fingerprint("h") for one in [base, *others]} | {base.fingerprint("other")}) == 7
