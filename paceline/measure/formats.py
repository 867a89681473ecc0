"""How figures are written for people, on the terminal and in the report. A figure that there is not is a dash."""


def number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """Rounded down at 100: only every single one of them is shown as 100 %."""
    if value is None:
        return "–"
    return f"{min(value * 100, 99.9 if value < 1 else 100):.{0 if value == 1 else 1}f} %"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"
