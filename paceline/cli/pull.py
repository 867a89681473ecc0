"""`paceline pull`: bring a known model to this machine."""

from typing import Annotated

import msgspec
import typer
from rich.console import Console

from paceline.build import fetch_known
from paceline.cli.options import progress_bar
from paceline.core.units import format_bytes


def pull(
    name: Annotated[str, typer.Argument(help="A known model name, such as smollm2.")],
    json: Annotated[bool, typer.Option("--json", help="Print {name, path, bytes} instead of a line.")] = False,
) -> None:
    """Download the model NAME into the cache folder, unless it is there, and check its hash."""
    with progress_bar(Console(stderr=True)) as report:
        path = fetch_known(name, progress=report)
    size = path.stat().st_size
    if json:
        typer.echo(msgspec.json.encode({"name": name, "path": str(path), "bytes": size}).decode())
    else:
        typer.echo(f"{name}: {path} ({format_bytes(size)})")
