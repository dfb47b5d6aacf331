"""One person at the page, in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect

from tests.app.conftest import Server

WORDS = "#pv-words textarea, #pv-words input"
SECONDS = 15_000


@dataclass
class Visitor:
    """One browser session, and everything in it that should not have happened."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    def listen(self, home: str) -> None:
        """Notes errors, and requests to anywhere but `home`."""
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self._request(request, home))

    def search(self, words: str) -> None:
        """Types a sentence and presses Enter."""
        self.page.fill(WORDS, words)
        self.page.press(WORDS, "Enter")
        expect(self.page.locator("#pv-answer")).to_contain_text(f"for “{words}”", timeout=SECONDS)

    def open_tab(self, name: str) -> None:
        """Opens a tab, from the menu of those there is no room for if it is one of them."""
        tab = self.page.get_by_role("tab", name=name, exact=True)
        if tab.is_visible():
            tab.click()
            return
        self.page.get_by_label("More tabs").click()
        self.page.locator(".overflow-dropdown button", has_text=name).click()

    def hits(self) -> list[str]:
        """What the results are called, best first."""
        return [str(img.get_attribute("alt")) for img in self.page.locator("#pv-grid img").all()]

    def look(self, place: int) -> None:
        """Clicks a result and waits for its map."""
        self.page.locator("#pv-grid button").nth(place).click()
        expect(self.page.locator("#pv-map img")).to_be_visible(timeout=SECONDS)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    def _request(self, request: Request, home: str) -> None:
        if not request.url.startswith((home, "data:", "blob:")):
            self.complaints.append(f"asked for {request.url}")


Visit = Callable[..., Visitor]


@contextmanager
def visits(browser: Browser, server: Server) -> Iterator[Visit]:
    """Gives a function that opens the page; at the end, no visitor may have a complaint."""
    visitors: list[Visitor] = []

    def open_page(width: int = 1280, dark: bool = False, address: str = "") -> Visitor:
        context = browser.new_context(
            viewport={"width": width, "height": 860}, color_scheme="dark" if dark else "light"
        )
        visitor = Visitor(context.new_page())
        visitor.listen(server.url)
        theme = "dark" if dark else "light"
        visitor.page.goto(f"{server.url}/?__theme={theme}&{address}".rstrip("&"))
        expect(visitor.page.locator("#pv-grid img").first).to_be_visible(timeout=SECONDS)
        visitors.append(visitor)
        return visitor

    yield open_page
    for visitor in visitors:
        visitor.page.context.close()
    assert [complaint for visitor in visitors for complaint in visitor.complaints] == []
