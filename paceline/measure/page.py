"""The shell of every report: one HTML file without any reference to another, in light, dark and print."""

from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path


def page(title: str, parts: Iterable[str]) -> str:
    """`title` and `parts` are HTML; empty parts are left out."""
    body = "\n".join(part for part in parts if part)
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<meta name='color-scheme' content='light dark'><title>{title}</title><style>\n{page_style()}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


@cache
def page_style() -> str:
    return (files("paceline.measure") / "report.css").read_text(encoding="utf-8")


def write_whole(path: Path, text: str) -> None:
    """Whoever reads the file meanwhile sees the old text or the new one."""
    draft = path.with_name(path.name + ".part")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
