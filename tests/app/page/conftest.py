"""One tab of headless Chromium at the page, and what must never happen in it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, expect

from tests.app.api.conftest import run  # noqa: F401 a fixture

DESKTOP, PHONE = (1280, 800), (390, 844)
PATIENCE = 60_000  # milliseconds
SHIFTS = """
window.shifts = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""


@dataclass
class Tab:
    """A tab of the browser.

    Attributes:
        page: of Playwright.
        home: the server's address.
        complaints: errors on the page, and requests to other machines.
    """

    page: Page
    home: str
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE)
        self.page.add_init_script(SHIFTS)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._request)

    def open(self, search: str = "") -> None:
        """Loads the page and waits for an answer with evidence."""
        self.page.goto(f"{self.home}/{search}")
        expect(self.page.locator(".tile canvas").first).to_be_visible()

    def ask(self, query: str) -> None:
        """Types a query and presses Enter."""
        self.page.fill("#query", query)
        self.page.keyboard.press("Enter")
        expect(self.page.locator("#query")).not_to_be_focused()
        expect(self.page.locator("#live")).to_contain_text(f"images for {query}")
        expect(self.page.locator(".tile canvas").first).to_be_visible()

    @property
    def tiles(self) -> Locator:
        """The tiles of the results, best first."""
        return self.page.locator(".tile")

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and "410" not in message.text:
            self.complaints.append(message.text)

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.home, "data:", "blob:")):
            self.complaints.append(f"asked another machine: {request.url}")


NewTab = Callable[..., Tab]


@contextmanager
def tabs(browser: Browser) -> Iterator[NewTab]:
    """Gives a function that opens a tab in a browser context of its own."""
    contexts = []

    def new(home: str, size: tuple[int, int] = DESKTOP, dark: bool = False) -> Tab:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if dark else "light",
            permissions=["clipboard-read", "clipboard-write"],
        )
        contexts.append((context, tab := Tab(context.new_page(), home)))
        return tab

    yield new
    for context, tab in contexts:
        context.close()
        assert not tab.complaints, tab.complaints


@pytest.fixture
def new_tab(browser: Browser) -> Iterator[NewTab]:
    """Opens tabs; at the end nothing may have complained in any."""
    with tabs(browser) as new:
        yield new
