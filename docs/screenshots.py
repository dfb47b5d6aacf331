"""Takes the screenshots of the app that the README shows: `python docs/screenshots.py`.

Every tab, light and dark, and one as on a phone, as WebP files of less than 150 kB beside this
script. `--only NAME ...` takes some of them, `--out DIR` puts them elsewhere. A new one is one
more `Shot` in `SHOTS`, with a function that brings the page where it should be.
"""

import argparse
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file
from tests.app.serving import servers

WORDS = "a dog"
TWO_THINGS = "a kangaroo and a whale can be seen in the image"
METHOD = "MVAM"
LARGEST = 150_000  # bytes of a screenshot
_PATIENCE = 120_000  # milliseconds until something must be there
_SETTLE = 2500  # milliseconds; images fade in


def search(page: Page) -> None:
    """A search, its first hit open, and a word chosen, which is lit where it is seen."""
    _type(page, "#pv-words", TWO_THINGS)
    page.locator("#pv-answer").get_by_text(TWO_THINGS).wait_for()
    page.locator("#pv-grid img").first.click()
    page.locator("#pv-map img").wait_for()
    page.locator("#pv-evidence .pv-ev-word", has_text="whale").click()
    page.locator("#pv-evidence").get_by_text("“whale” adds").wait_for()


def results(page: Page) -> None:
    """A search and its hits, as far as they fit."""
    _type(page, "#pv-words", WORDS)
    page.locator("#pv-answer").get_by_text(WORDS).wait_for()


def compare(page: Page) -> None:
    """One of the examples through several methods, side by side."""
    page.locator(".pv-cmp-try", has_text=f"Only {METHOD}").click()
    page.locator(".pv-cmp-mark").first.wait_for()
    page.locator("#pv-cmp-results img").first.wait_for()


def views(page: Page) -> None:
    """The maps of every view of an image."""
    page.locator("#pv-v-method input").click()
    page.get_by_role("option", name=METHOD).locator("visible=true").click()
    page.locator("#pv-v-answer").get_by_text(METHOD).wait_for()
    page.locator(".pv-v-view").nth(16).wait_for()


def benchmark(page: Page) -> None:
    """The table of all methods and the plot."""
    page.locator("#pv-bench-results tbody tr").first.wait_for()
    page.locator("#pv-bench-plot svg").first.wait_for(state="attached")


def models(page: Page) -> None:
    """The pack and its methods."""
    page.locator(".pv-card:visible").nth(1).wait_for()


@dataclass(frozen=True)
class Shot:
    """One screenshot, taken in every scheme.

    Attributes:
        name: of the file; the dark one has `-dark` added.
        tab: the title of the tab to open first.
        act: brings the tab where it should be.
        width: of the window in pixels.
        height: of the window; what lies below is not seen.
        schemes: "light", "dark" or both.
    """

    name: str
    tab: str
    act: Callable[[Page], None]
    width: int = 1280
    height: int = 1100
    schemes: tuple[str, ...] = ("light", "dark")


SHOTS = (
    Shot("search", "Search", search),
    Shot("compare", "Compare", compare),
    Shot("views", "Views", views, height=1300),
    Shot("benchmark", "Benchmark", benchmark),
    Shot("models", "Models", models),
    Shot("phone", "Search", results, width=390, height=844, schemes=("light",)),
)


def main(argv: Sequence[str]) -> None:
    """Starts the app on the bundled pack and takes the screenshots."""
    parser = argparse.ArgumentParser(prog="python docs/screenshots.py")
    names = [shot.name for shot in SHOTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    given = parser.parse_args(argv)
    browser_file = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if browser_file is None:
        raise SystemExit("the screenshots need Chromium: apt-get install chromium, or set CHROMIUM")
    given.out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        servers(lambda: Path(folder)) as start,
        sync_playwright() as playwright,
    ):
        address = start().url
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=browser_file, args=flags)
        for shot in SHOTS:
            for scheme in shot.schemes if shot.name in given.only else ():
                name = f"{shot.name}-dark" if scheme == "dark" else shot.name
                path = given.out / f"{name}.webp"
                _save(_take(browser, address, shot, scheme), path)
                print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
        browser.close()


def _take(browser: Browser, address: str, shot: Shot, scheme: str) -> Image.Image:
    page = browser.new_page(viewport={"width": shot.width, "height": shot.height})
    page.set_default_timeout(_PATIENCE)
    page.goto(f"{address}/?__theme={scheme}")
    page.locator("#pv-grid img").first.wait_for()  # the page opens with some images
    page.locator("#pv-top .pv-busy").wait_for(state="detached")  # everything is read
    if shot.tab in ("Views", "Benchmark", "Models"):
        page.get_by_role("tab", name="Lab", exact=True).click()
    page.get_by_role("tab", name=shot.tab, exact=True).click()
    shot.act(page)
    page.evaluate("window.scrollTo(0, 0)")
    page.wait_for_timeout(_SETTLE)
    image = Image.open(io.BytesIO(page.screenshot()))
    page.close()
    return image.convert("RGB")


def _save(image: Image.Image, path: Path) -> None:
    """Writes a WebP file, as good as the size allows."""
    for quality in (84, 76, 68, 60, 50):
        image.save(path, quality=quality, method=6)
        if path.stat().st_size < LARGEST:
            return
    raise SystemExit(f"{path} has more than {LARGEST // 1000} kB; show less of the page")


def _type(page: Page, box: str, words: str) -> None:
    """Types into a text box and presses Enter."""
    field = page.locator(f"{box} textarea, {box} input").first
    field.fill(words)
    field.press("Enter")


if __name__ == "__main__":
    main(sys.argv[1:])
