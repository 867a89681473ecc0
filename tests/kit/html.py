"""What a test wants to know of an HTML page."""

from html.parser import HTMLParser


class Tags(HTMLParser):
    """Every reference the page makes, and whether its elements are closed in order."""

    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []
        self.names: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.references += [v or "" for k, v in attributes if k in ("src", "href", "xlink:href", "srcset", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
