"""Takes the screenshot of the app that the README shows: `python docs/screenshots.py [DIR]`.

A WebP file of at most 150 kB beside this script, or in DIR. A new one is one more line in `SHOTS`.
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
# name of the file, address, and what is waited for
SHOTS = (("search", f"?q={TWO_THINGS}&words=1,4", ".tile canvas[data-words='1,4'] >> nth=15"),)
WINDOW = {"width": 1280, "height": 800}
LARGEST = 150_000  # bytes of a screenshot
PATIENCE = 120_000  # milliseconds


def main(argv: Sequence[str]) -> None:
    """Starts the app on the bundled scenes and takes the screenshots."""
    out = Path(argv[0]) if argv else Path(__file__).parent
    browser_file = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if browser_file is None:
        raise SystemExit("the screenshots need Chromium: apt-get install chromium, or set CHROMIUM")
    out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        servers(lambda: Path(folder)) as start,
        sync_playwright() as playwright,
    ):
        address = start().url
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=browser_file, args=flags)
        for name, search, ready in SHOTS:
            page = browser.new_page(viewport=WINDOW)  # type: ignore[arg-type]
            page.goto(f"{address}/{search}")
            page.locator(ready).wait_for(timeout=PATIENCE)
            page.locator(".panel .stage canvas").wait_for(timeout=PATIENCE)
            save(Image.open(io.BytesIO(page.screenshot())).convert("RGB"), out / f"{name}.webp")
        browser.close()


def save(image: Image.Image, path: Path) -> None:
    """Writes a WebP file, as good as the size allows."""
    for quality in (84, 76, 68, 60, 50):
        image.save(path, quality=quality, method=6)
        if path.stat().st_size < LARGEST:
            print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
            return
    raise SystemExit(f"{path} has more than {LARGEST // 1000} kB; show less of the page")


if __name__ == "__main__":
    main(sys.argv[1:])
