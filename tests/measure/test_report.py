"""The report: every cell is in it, it needs no other file, and its colours are the page's."""

import re
from collections.abc import Callable
from pathlib import Path

from paceline.measure.settings import BenchSettings
from paceline.measure.summary import Summary
from tests.kit.html import Tags

Bench = Callable[..., tuple[Path, Summary, str]]


def test_report_holds_every_cell_and_nothing_from_outside(bench: Bench) -> None:
    settings = BenchSettings(model="fake<&>", draft_tokens=(0, 3), concurrency=(1, 2), prompts=1, max_tokens=12)
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
    assert tags.names.count("svg") == 4 and not {"script", "link", "img", "iframe"} & set(tags.names)


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
