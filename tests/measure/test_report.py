"""The report: every cell is in it, it needs no other file, and its colours are the page's."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from paceline.measure.settings import BenchSettings, parse_speculation
from paceline.measure.summary import Summary
from tests.kit.html import Tags

Bench = Callable[..., tuple[Path, Summary, str]]


def test_report_holds_every_cell_and_nothing_from_outside(bench: Bench) -> None:
    settings = BenchSettings(
        model="fake<&>",
        speculation=parse_speculation("ngram,mtp:2", "0,3"),
        concurrency=(1, 2),
        prompts=1,
        max_tokens=12,
    )
    folder, summary, _ = bench(settings, report={"engine.threads": 9}, when={"draft_tokens": 3, "max_concurrency": 2})
    page = (folder / "report.html").read_text()
    for cell in summary.cells:
        assert f"data-point='{cell.point.name}'" in page
        if cell.figures is not None and cell.figures.tokens_per_s is not None:
            assert page.count(f">{cell.figures.tokens_per_s:.1f}<") >= 2
    assert "engine.threads: requested 2, the server runs 9" in page and "fake&lt;&amp;&gt;" in page
    assert "fake<&>" not in page
    assert "://" not in page and "@import" not in page
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", page))
    tags = Tags()
    tags.feed(page)
    assert tags.open == [] and all(target.startswith("#") for target in tags.references)
    assert tags.names.count("svg") == 5 and not {"script", "link", "img", "iframe"} & set(tags.names)


def test_speed_stands_against_acceptance_and_tokens_per_round(bench: Bench) -> None:
    """The axes with their units, a legend by drafter and by C, and K at every cell that drafted."""
    settings = BenchSettings(
        model="fake", speculation=parse_speculation("ngram:2,mtp:3", None), concurrency=(1, 2), prompts=1, max_tokens=12
    )
    folder, summary, _ = bench(settings)
    drawings = re.findall(r"<svg.*?</svg>", (folder / "report.html").read_text(), flags=re.DOTALL)
    [paradox] = [one for one in drawings if "against acceptance" in one]
    texts = re.findall(r"<text [^>]*>([^<]*)</text>", paradox)
    for words in (
        "acceptance: accepted / proposed drafts, %", "tokens per round: 1 + accepted drafts / rounds",
        "tok/s, all streams", "no drafts", "ngram", "mtp", "C = 1", "C = 2", "no drafts, C = 1",
    ):  # fmt: skip
        assert words in texts, words
    # "2" and "3" stand in both panels for both C; ticks of the axes may add to that.
    assert texts.count("2") >= 4 and texts.count("3") >= 4
    [positions] = [one for one in drawings if "by draft position" in one]
    texts = re.findall(r"<text [^>]*>([^<]*)</text>", positions)
    assert {"joint, %", "conditional, %", "draft position", "ngram K=2", "mtp K=3"} <= set(texts)
    assert {"all", *summary.cells[0].workloads} <= set(texts)


def test_positions_are_in_a_table(bench: Bench) -> None:
    folder, summary, _ = bench()
    page = (folder / "report.html").read_text()
    [drafting] = summary.drafting
    for name, shares in drafting.workloads.items():
        joint = "".join(f"<td>{100 * value:.0f} %</td>" for value in shares.joint)
        assert f"<td>{name}</td><td>ngram</td><td>3</td><td>{shares.rounds}</td><td>joint</td>{joint}</tr>" in page


def test_without_drafts_there_is_nothing_to_draw_against_acceptance(bench: Bench, small: BenchSettings) -> None:
    folder, summary, _ = bench(msgspec.structs.replace(small, speculation=parse_speculation("none", None)))
    page = (folder / "report.html").read_text()
    assert summary.drafting == [] and page.count("<svg") == 3 and "against acceptance" not in page


def test_drawings_use_the_colours_of_the_page(bench: Bench) -> None:
    folder, _, _ = bench()
    page = (folder / "report.html").read_text()
    drawings = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    assert set(re.findall(r"(?:fill|stroke): ([^;\"]+)", drawings)) <= {"none"} | {
        f"var(--{name})" for name in ("ink", "muted", "grid", "surface", *(f"s{i}" for i in range(7)))
    }
    # Text without a fill would be black in the dark too.
    assert all("fill: var(--" in text for text in re.findall(r"<text [^>]*>", drawings))
    variables = set(re.findall(r"var\((--[a-z0-9]+)\)", page)) - {"--p", "--c"}
    assert all(page.count(f"{name}:") >= 3 for name in variables)
