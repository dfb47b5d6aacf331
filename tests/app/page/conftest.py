"""Tabs of headless Chromium that record script errors and requests to other machines."""

import base64
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, ConsoleMessage, Download, Locator, Page, Request, expect

from tests.app.serving import Server

DESKTOP, TABLET, PHONE = (1280, 800), (768, 1024), (390, 844)
PATIENCE = 60_000  # milliseconds
expect.set_options(timeout=PATIENCE)
SHIFTS = """
window.shifts = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""
PIXELS = """(canvas) => {
  const { width, height } = canvas;
  const copy = Object.assign(document.createElement("canvas"), { width, height });
  const image = canvas.parentElement.querySelector("img");
  copy.getContext("2d").drawImage(image, 0, 0, width, height);
  return [canvas.toDataURL(), copy.toDataURL()];
}"""


@dataclass
class Tab:
    """A tab of the browser at a server's address."""

    page: Page
    home: str
    complaints: list[str] = field(default_factory=list)  # errors, and requests to other machines

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE)
        self.page.add_init_script(SHIFTS)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._request)

    def open(self, search: str = "", ready: str = ".tile canvas") -> None:
        """Loads the page and waits for the first element that matches `ready`."""
        self.page.goto(f"{self.home}/{search}")
        expect(self.page.locator(ready).first).to_be_visible()

    def ask(self, query: str) -> None:
        """Types a query and presses Enter."""
        self.page.fill("#query", query)
        self.page.keyboard.press("Enter")
        expect(self.page.locator("#query")).not_to_be_focused()
        expect(self.page.locator("#live")).to_contain_text(f"images for {query}")
        expect(self.page.locator(".tile canvas").first).to_be_visible()

    def button(self, name: str) -> Locator:
        """The button with exactly this name."""
        return self.page.get_by_role("button", name=name, exact=True)

    def save(self, name: str) -> Download:
        """Chooses a format in the menu Save; returns the download."""
        self.page.locator("summary", has_text="Save").click()
        with self.page.expect_download() as download:
            self.button(name).click()
        return download.value

    @property
    def tiles(self) -> Locator:
        """The tiles of the results, best first."""
        return self.page.locator(".tile")

    def top(self, selector: str) -> float:
        """The distance from the window's top to the first match, in pixels."""
        box = self.page.locator(selector).first.bounding_box()
        assert box is not None
        return box["y"]

    def fits(self) -> bool:
        """Returns whether no element is wider than the window and the layout did not shift."""
        wide, shifts = self.page.evaluate(
            "[document.documentElement.scrollWidth - innerWidth, window.shifts]"
        )
        return wide <= 0 and shifts <= 0.05

    def serious(self) -> list[tuple[str, str]]:
        """Serious violations of axe-core's rules: the rule and the element."""
        return [
            (rule["id"], node["html"][:200])
            for rule in Axe().run(self.page).response["violations"]
            if rule["impact"] in ("serious", "critical") or rule["id"] == "image-redundant-alt"
            for node in rule["nodes"]
        ]

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not {"400", "404", "410", "503"} & set(message.text.split()):
            self.complaints.append(message.text)

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.home, "data:", "blob:")):
            self.complaints.append(f"asked another machine: {request.url}")


def pixels(canvas: Locator) -> tuple[np.ndarray, np.ndarray]:
    """A canvas with evidence and the image below it: (height, width, 3), 0 to 255."""
    files = (base64.b64decode(uri.partition(",")[2]) for uri in canvas.evaluate(PIXELS))
    drawn, original = (Image.open(io.BytesIO(file)).convert("RGB") for file in files)
    return np.asarray(drawn, float), np.asarray(original, float)


NewTab = Callable[..., Tab]


@pytest.fixture
def new_tab(browser: Browser) -> Iterator[NewTab]:
    """Opens tabs in separate browser contexts; fails the test if a tab has complaints."""
    contexts = []

    def new(home: str, size: tuple[int, int] = DESKTOP, dark: bool = False) -> Tab:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light"
        )
        contexts.append((context, tab := Tab(context.new_page(), home)))
        return tab

    yield new
    for context, tab in contexts:
        context.close()
        assert not tab.complaints, tab.complaints


@pytest.fixture
def tab(new_tab: NewTab, bundled: Server) -> Tab:
    """A desktop tab at the app over the bundled scenes."""
    return new_tab(bundled.url)
