"""Takes the pictures of the app that the README shows: `python docs/screenshots.py`."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
PORT = 7979
QUERY = "a dog"
METHOD = "MVAM"
SHOTS = (("search-dark", "dark"), ("search", "light"))


def main() -> None:
    """Starts the app on the bundled pack, searches, and writes one WebP file a colour scheme."""
    browser_file = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if browser_file is None:
        raise SystemExit("the screenshots need Chromium: apt-get install chromium, or set CHROMIUM")
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "POLYVIEW_CACHE": cache}
        command = [sys.executable, "app/main.py", "--port", str(PORT)]
        app = subprocess.Popen(command, cwd=ROOT, env=environment)
        try:
            _await_page()
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=browser_file, args=["--no-sandbox", "--disable-gpu"]
                )
                for name, scheme in SHOTS:
                    _shoot(browser, name, scheme)
        finally:
            app.terminate()
            app.wait(20)


def _await_page() -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/", timeout=5):
                return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.3)
    raise SystemExit("the app did not start within 60 seconds")


def _shoot(browser: Browser, name: str, scheme: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 1100})
    page.goto(f"http://127.0.0.1:{PORT}/?__theme={scheme}")
    page.locator("#pv-grid img").first.wait_for(timeout=60_000)  # the page opens with an example
    words = page.locator("#pv-words textarea, #pv-words input").first
    words.fill(QUERY)
    words.press("Enter")
    page.locator("#pv-answer").get_by_text(QUERY).wait_for(timeout=60_000)
    page.locator("#pv-method input").click()
    page.get_by_role("option", name=METHOD).first.click()
    page.locator("#pv-answer").get_by_text(METHOD).wait_for(timeout=60_000)
    page.locator("#pv-grid button").first.click()
    page.locator("#pv-map img").wait_for(timeout=30_000)
    page.wait_for_timeout(1500)  # pictures fade in
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True)))
    picture.convert("RGB").save(ROOT / "docs" / f"{name}.webp", quality=80, method=6)
    page.close()


if __name__ == "__main__":
    main()
