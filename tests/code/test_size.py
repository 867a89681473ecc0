"""Files stay short enough to be read in one go."""

from tests.code.modules import ROOT

MOST_LINES = 400


def test_no_file_is_longer_than_400_lines() -> None:
    lengths = {}
    for folder in ("paceline", "tests", "benchmarks"):
        for file in (ROOT / folder).rglob("*.py"):
            lengths[str(file.relative_to(ROOT))] = len(file.read_text(encoding="utf-8").splitlines())
    assert len(lengths) > 100
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_every_file_says_what_it_is_for() -> None:
    """A docstring first, in every file that has anything in it."""
    for file in (ROOT / "paceline").rglob("*.py"):
        text = file.read_text(encoding="utf-8").lstrip()
        assert not text or text.startswith('"""'), file
