"""A budget of memory is kept by all together, first come, first served."""

import io
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

from app.gallery import images
from app.gallery.image_files import ImageError
from app.gallery.images import Budget, open_image


def test_no_more_than_the_total_is_held_at_a_time() -> None:
    budget, held, most, lock = Budget(10), [0], [0], threading.Lock()

    def work(count: int) -> None:
        with budget.take(count, 20):
            with lock:
                held[0] += min(count, 10)
                most[0] = max(most[0], held[0])
            time.sleep(0.002)
            with lock:
                held[0] -= min(count, 10)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(work, [1, 4, 9, 10, 30, 5, 2, 7] * 12))
    assert 7 <= most[0] <= 10


def test_who_waits_too_long_is_told_and_frees_the_line() -> None:
    budget = Budget(10)
    with budget.take(8, 1):
        with pytest.raises(TimeoutError), budget.take(5, 0.01):
            pytest.fail("there was no room")
        with budget.take(2, 0.01):
            pass
    with budget.take(10, 0.01):
        pass


def test_a_large_one_is_not_overtaken_for_ever() -> None:
    budget, order = Budget(10), []
    began = threading.Event()

    def large() -> None:
        began.set()
        with budget.take(10, 20):
            order.append("large")

    def small() -> None:
        with budget.take(1, 20):
            order.append("small")

    with ThreadPoolExecutor(2) as pool, budget.take(5, 1):
        pool.submit(large)
        assert began.wait(5)
        while not budget._line:
            time.sleep(0.001)
        pool.submit(small)
        time.sleep(0.05)
        assert order == []
    assert order == ["large", "small"]


def test_what_fails_gives_its_memory_back() -> None:
    budget = Budget(10)
    with pytest.raises(KeyError), budget.take(10, 1):
        raise KeyError
    with budget.take(10, 0.01):
        pass


def test_avif_that_lie_about_their_size_are_decoded_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.BytesIO()
    Image.new("RGB", (2000, 2000), "teal").save(file, "AVIF", speed=10)
    content = file.getvalue()
    place = content.index(b"ispe") + 8
    content = content[:place] + struct.pack(">II", 64, 64) + content[place + 8 :]
    (tmp_path / "small.avif").write_bytes(content)
    assert open_image(tmp_path / "small.avif").size == (64, 64)
    monkeypatch.setattr(images, "_PATIENCE", 0.01)
    with images._large_ones.take(1, 1), pytest.raises(ImageError, match="has waited"):
        open_image(tmp_path / "small.avif")
