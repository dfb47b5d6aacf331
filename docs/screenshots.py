"""Takes the screenshots of README and docs/app.md: `python docs/screenshots.py [DIR]`.

Writes WebP files of at most 400 kB to DIR, by default this script's folder: a search with one word
selected, then another, then both; and the mistakes of PVSE and VSE-infinity.
"""

import io
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file
from tests.app.serving import servers

TWO_THINGS = "a+kangaroo+and+a+whale+can+be+seen+in+the+image"
WORDS = ("1", "4", "1,4")  # kangaroo, whale, both
WINDOW = {"width": 1280, "height": 800}
SECONDS = 1.8  # duration of a frame
LARGEST = 400_000  # maximum bytes of a file
PATIENCE = 120_000  # timeout of the page in milliseconds


def main(argv: Sequence[str]) -> None:
    """Starts the app on the bundled scenes and takes the screenshots."""
    out = Path(argv[0]) if argv else Path(__file__).parent
    browsers = map(shutil.which, ("chromium-headless-shell", "chromium"))
    browser_file = os.environ.get("CHROMIUM") or next(filter(None, browsers), None)
    if browser_file is None:
        raise SystemExit(
            "the screenshots need Chromium: install chromium-headless-shell, or set CHROMIUM"
        )
    out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        servers(lambda: Path(folder)) as start,
        sync_playwright() as playwright,
    ):
        address = start().url
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=browser_file, args=flags)
        page = browser.new_page(viewport=WINDOW)  # type: ignore[arg-type]
        frames = []
        for words in WORDS:
            page.goto(f"{address}/?q={TWO_THINGS}&words={words}")
            page.locator(f".tile canvas[data-words='{words}'] >> nth=15").wait_for(timeout=PATIENCE)
            page.locator(".panel .stage canvas").wait_for(timeout=PATIENCE)
            frames.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
        save(frames, out / "search.webp")
        page.goto(f"{address}/?screen=mistakes&a=pvse&b=vse_infty")
        page.locator(".captions .tile >> nth=30").wait_for(timeout=PATIENCE)
        page.wait_for_load_state("networkidle")
        save([Image.open(io.BytesIO(page.screenshot())).convert("RGB")], out / "mistakes.webp")
        browser.close()


def save(frames: Sequence[Image.Image], path: Path) -> None:
    """Writes an animated WebP file with the highest quality that fits in `LARGEST`."""
    first, *others = frames
    for quality in (84, 76, 68, 60, 50):
        first.save(
            path, quality=quality, method=6, append_images=others, save_all=True,
            duration=int(1000 * SECONDS), loop=0,
        )  # fmt: skip
        if path.stat().st_size < LARGEST:
            print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
            return
    raise SystemExit(f"{path} has more than {LARGEST // 1000} kB; show less of the page")


if __name__ == "__main__":
    main(sys.argv[1:])
