"""Pieces of HTML as a browser reads them."""

from html.parser import HTMLParser

from tests.app.conftest import HOSTILE


class Page(HTMLParser):
    """The elements of a piece of HTML, with their attributes, and its text."""

    def __init__(self, piece: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(str(piece))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes an element."""
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Notes text."""
        self.text += data


def stays_text(piece: str) -> bool:
    """Whether a piece that was made of `HOSTILE` holds it, and as text only."""
    page = Page(piece)
    values = [str(value) for _, attributes in page.elements for value in attributes.values()]
    held = any(HOSTILE in place.replace("<Img", "<img") for place in (page.text, *values))
    images = [attributes for tag, attributes in page.elements if tag == "img"]
    fetched = [str(image["src"]) for image in images if "src" in image]
    own = all(address.startswith(("data:", "thumbnails/")) for address in fetched)
    return held and own and not set(piece) & set("{}$`\\") and ("bold", {}) not in page.elements
