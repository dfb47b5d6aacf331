"""One person at the page, in a real browser."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect

from tests.app.serving import Server

WORDS = "#pv-words textarea, #pv-words input"
WIDTH, HEIGHT = 1280, 860  # of the page, unless a test is about its width
PATIENCE = 60_000  # milliseconds; a busy machine takes long to load a page
expect.set_options(timeout=PATIENCE)


@dataclass
class Visitor:
    """One browser session, and everything in it that should not have happened.

    Attributes:
        page: the tab of the browser.
        home: the app's address.
        complaints: errors, and requests to anywhere but `home`.
    """

    page: Page
    home: str
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._request)

    def enter(self, address: str = "", dark: bool = False) -> None:
        """Loads the page; what was there before is gone, and the session is a new one."""
        self.forget()
        theme = "dark" if dark else "light"
        self.page.goto(f"{self.home}/?__theme={theme}&{address}".rstrip("&"))
        expect(self.page.locator("#pv-grid img").first).to_be_visible()

    def forget(self) -> None:
        """Leaves the page, and nothing of it in the browser but its files."""
        self.page.evaluate(
            "try { localStorage.clear(); sessionStorage.clear() } catch { /* none */ }"
        )
        self.page.context.clear_permissions()
        self.leave()

    def leave(self) -> None:
        """Leaves the page."""
        self._leaving(lambda: self.page.goto("about:blank"))

    def reload(self) -> None:
        """Loads the page anew."""
        self._leaving(self.page.reload)

    def settle(self) -> None:
        """Shows Search with no image open and words asked at most; loads the page if it has to."""
        self.open_tab("Search")
        self.close()
        if not self.asked().keys() <= {"__theme", "tab", "q", "method"}:
            self.enter()

    def _leaving(self, leave: Callable[[], object]) -> None:
        """What a page says of answers it was still waiting for is no complaint."""
        self.page.evaluate("0")  # answers after all that the page has said so far has come
        count = len(self.complaints)
        leave()
        self.page.evaluate("0")
        del self.complaints[count:]

    def resize(self, width: int, dark: bool = False) -> None:
        """Makes the page so wide, and dark or light, without loading it again."""
        self.page.set_viewport_size({"width": width, "height": HEIGHT})
        self.page.emulate_media(color_scheme="dark" if dark else "light")
        self.page.evaluate("dark => document.body.classList.toggle('dark', dark)", dark)

    def search(self, words: str) -> None:
        """Types a sentence and presses Enter."""
        self.page.fill(WORDS, words)
        self.page.press(WORDS, "Enter")
        expect(self.page.locator("#pv-answer")).to_contain_text(f"for “{words}”")

    def open_tab(self, name: str) -> None:
        """Opens a tab, in the lab or beside it."""
        if name in ("Views", "Benchmark", "Models"):
            self.page.get_by_role("tab", name="Lab", exact=True).click()
        self.page.get_by_role("tab", name=name, exact=True).click()

    def choose_method(self, title: str) -> None:
        """Chooses who answers a search, unless that is so already."""
        box = self.page.locator("#pv-method input")
        if not box.input_value().startswith(f"{title} ("):
            box.click()
            option = re.compile(f"^{re.escape(title)} \\(")
            self.page.get_by_role("option", name=option).click()
            expect(self.page.locator("#pv-answer")).to_contain_text(title)

    def asked(self) -> dict[str, list[str]]:
        """What the page's address holds."""
        return parse_qs(urlsplit(self.page.url).query)

    def hits(self) -> list[str]:
        """What the results are called, best first."""
        return [str(img.get_attribute("alt")) for img in self.page.locator("#pv-grid img").all()]

    def look(self, place: int) -> None:
        """Clicks a result and waits for its map."""
        self.page.locator("#pv-grid button").nth(place).click()
        expect(self.page.locator("#pv-map img")).to_be_visible()

    def close(self) -> None:
        """Closes the picture that was looked at, if there is one."""
        button = self.page.get_by_role("button", name="Close", exact=True)
        if button.is_visible():
            button.click()
            expect(self.page.locator("#pv-inspector")).to_contain_text("Choose a picture")

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.home, "data:", "blob:")):
            self.complaints.append(f"asked for {request.url}")


Visit = Callable[..., Visitor]


def arrive(browser: Browser, server: Server) -> Visitor:
    """A visitor with nothing in the browser from before, who has yet to `enter`."""
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    return Visitor(context.new_page(), server.url)


@dataclass
class Guests:
    """Visitors of a process's tests: opening a page takes seconds, and twice that the first time.

    One of each server stays on its page from test to test of a file. What was done there before is
    still there, so a test says all that it depends on: the sentence, the method, the tab. Others
    come for one test. When they leave, their browser session waits, empty, for another test.
    """

    browser: Browser
    session: pytest.Session
    _staying: dict[str, Visitor] = field(default_factory=dict)
    _resting: dict[str, list[Visitor]] = field(default_factory=dict)

    @contextmanager
    def at(self, server: Server) -> Iterator[Visitor]:
        """The guest who stays; where a test fails, the next one finds another."""
        if server.url not in self._staying:
            self._staying[server.url] = self._come(server)
            self._staying[server.url].enter()
        visitor, before = self._staying[server.url], self.session.testsfailed
        visitor.resize(WIDTH)
        yield visitor
        if self.session.testsfailed > before or visitor.complaints:
            del self._staying[server.url]
            visitor.page.context.close()
        assert not visitor.complaints, visitor.complaints

    @contextmanager
    def visits(self, server: Server) -> Iterator[Visit]:
        """Gives a function that opens the page; at the end, no visitor may have a complaint."""
        visitors: list[Visitor] = []
        before = self.session.testsfailed

        def open_page(width: int = WIDTH, dark: bool = False, address: str = "") -> Visitor:
            visitor = self._come(server)
            visitors.append(visitor)
            visitor.resize(width, dark)
            visitor.enter(address, dark)
            return visitor

        yield open_page
        complaints = [complaint for visitor in visitors for complaint in visitor.complaints]
        for visitor in visitors:
            if complaints or self.session.testsfailed > before:
                visitor.page.context.close()
            else:
                self._go(visitor)
        assert not complaints, complaints

    def leave(self) -> None:
        """Leaves the pages: an open one keeps the browser and the app busy."""
        for visitor in self._staying.values():
            self._go(visitor)
        self._staying.clear()

    def _come(self, server: Server) -> Visitor:
        resting = self._resting.get(server.url)
        return resting.pop() if resting else arrive(self.browser, server)

    def _go(self, visitor: Visitor) -> None:
        visitor.forget()
        self._resting.setdefault(visitor.home, []).append(visitor)
