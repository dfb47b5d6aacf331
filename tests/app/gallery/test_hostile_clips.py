"""Clips that lie, end early, never end or attack their decoder: a sentence, and bounded work."""

from __future__ import annotations

import io
import struct
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from app.gallery import animations, video_process, videos
from app.gallery.clips import chosen_frames, is_clip
from app.gallery.image_files import ImageError, open_image_file
from app.gallery.sampling import LOOKS, MOST, Moment, choose
from tests.app.clip_files import as_bytes, plain, sound_alone, write_animation, write_video


class Counted(io.FileIO):
    """A file that counts what is read of it."""

    count = 0

    def read(self, size: int | None = -1) -> bytes:
        """Reads and counts."""
        content = super().read(size) or b""
        self.count += len(content)
        return content


def frames_of(path: Path) -> list[tuple[Moment, Image.Image]]:
    with open_image_file(path, path.name) as file:
        assert is_clip(file, path.name)
        return list(chosen_frames(file, path.name))


def refusal_of(path: Path) -> str:
    with pytest.raises(ImageError) as caught:
        frames_of(path)
    said = str(caught.value)
    assert said.startswith(path.name)
    assert "\n" not in said
    assert len(said) < 200
    return said


def of_packets(path: Path, packets: list[bytes], count: int, rate: int, side: int = 16) -> Path:
    """A video of a count of frames, the packets over and over; the first is a key frame."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate)
        stream.width = stream.height = side
        stream.pix_fmt, stream.time_base = "yuv420p", Fraction(1, rate)
        for number in range(count):
            place = number % len(packets)
            packet = av.Packet(packets[place])
            packet.pts = packet.dts = number
            packet.time_base, packet.stream = Fraction(1, rate), stream
            packet.is_keyframe = place == 0
            container.mux(packet)
    return path


def packets_of(count: int) -> list[bytes]:
    """A key frame and others after it, which say that nothing changes."""
    context = av.CodecContext.create("mpeg4", "w")
    context.width = context.height = 16
    context.pix_fmt, context.time_base = "yuv420p", Fraction(1, 25)
    context.options = {"g": str(count)}
    frame = av.VideoFrame.from_image(plain("red", (16, 16)))
    found = []
    for number in range(count):
        frame.pts = number
        found += [bytes(packet) for packet in context.encode(frame)]
    return found


def test_of_ten_hours_little_is_decoded(tmp_path: Path) -> None:
    """180,000 frames: 64 slots of key frames, and what lies between is neither decoded nor read."""
    path = of_packets(tmp_path / "long.mp4", packets_of(250), 180_000, 5)
    with Counted(str(path)) as file, av.open(file, "r", format="mov") as container:
        clip = video_process._Clip(container)
        assert clip.length == pytest.approx(36_000)
        opening = file.count
        found = [moment for moment, _ in choose(clip.looked(), clip.length)]
        decoded = (video_process.MOST_PIXELS - clip._left) / video_process._LEAST_PIXELS
        assert decoded <= MOST * (LOOKS + 1)
        assert file.count - opening < path.stat().st_size
    assert len(found) == MOST
    assert all(0 <= found[slot].seconds - slot * 36_000 / MOST < 600 for slot in range(MOST))
    assert all(moment.frame == round(5 * moment.seconds) for moment in found)
    assert [moment for moment, _ in frames_of(path)] == found


def test_of_a_long_clip_of_one_key_frame_the_beginning_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = of_packets(tmp_path / "long.mp4", packets_of(250) * 12, 3000, 5)
    monkeypatch.setattr(video_process, "MOST_PIXELS", 1000 * video_process._LEAST_PIXELS)
    with av.open(str(path), "r") as container:
        clip = video_process._Clip(container)
        found = [moment for moment, _ in choose(clip.looked(), clip.length)]
        assert clip._left == 0
    assert 20 <= len(found) <= 23  # the slots of the first 1,000 of 3,000 frames
    assert found[-1].seconds <= 200


def test_a_million_frames_of_one_pixel(tmp_path: Path) -> None:
    two = [plain("red", (1, 1)), plain("blue", (1, 1))]
    content = write_animation(tmp_path / "two.gif", two).read_bytes()
    start = content.index(b"!\xf9")
    frame = content[start : content.index(b"!\xf9", start + 1)]
    path = tmp_path / "many.gif"
    path.write_bytes(content[:start] + frame * 1_000_000 + b";")
    assert refusal_of(path) == "many.gif has more than 10,000 frames; save it as MP4, or cut it"
    with path.open("rb") as file:
        assert len(animations.shown_for(file)) == 10_001
        assert file.tell() < path.stat().st_size / 50


@pytest.mark.parametrize(
    ("side", "why"),
    [
        (8640, "8640 x 8640 pixels, more than the 36 million allowed"),
        (65_500, "no frame that can be decoded"),
    ],
)
def test_frames_of_16k_and_more(tmp_path: Path, side: int, why: str) -> None:
    small = as_bytes(plain("red", (1000, 1000)), "JPEG")
    path = tmp_path / "large.mov"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", 5)
        stream.width = stream.height = 1000
        stream.pix_fmt, stream.time_base = "yuvj420p", Fraction(1, 5)
        for number in range(3):
            packet = av.Packet(small)
            packet.pts = packet.dts = number
            packet.time_base, packet.stream = Fraction(1, 5), stream
            container.mux(packet)
    stated, lie = struct.pack(">2H", 1000, 1000), struct.pack(">2H", side, side)
    path.write_bytes(path.read_bytes().replace(stated, lie))
    assert why in refusal_of(path)


@pytest.mark.parametrize(
    ("size", "said"),
    [((5000, 5000), "has frames of 5000 x 5000 pixels"), ((60_000, 60_000), "far more than")],
)
def test_a_large_animation(tmp_path: Path, size: tuple[int, int], said: str) -> None:
    path = write_animation(tmp_path / "a.gif", [*map(plain, ("red", "blue"))])
    content = bytearray(path.read_bytes())
    content[6:10] = struct.pack("<2H", *size)
    path.write_bytes(content)
    assert said in refusal_of(path)


def test_an_animation_of_too_many_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(animations, "MOST_PIXELS", 1_000_000)
    frames = [plain((i, 0, 0), (400, 300)) for i in range(9)]
    path = write_animation(tmp_path / "a.webp", frames)
    assert "9 frames of 400 x 300 pixels, more than 1 million in all" in refusal_of(path)


def test_a_clip_that_is_cut_off_is_found_by_what_is_there(tmp_path: Path) -> None:
    noise = np.random.default_rng(5).integers(0, 255, (40, 48, 64, 3), np.uint8)
    path = tmp_path / "cut.mkv"
    write_video(path, [Image.fromarray(one) for one in noise], g="5")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    found = frames_of(path)
    assert 1 <= len(found) < 8
    path.write_bytes(content[:300])
    assert "is damaged, or is no clip" in refusal_of(path) or "no frame" in refusal_of(path)


def test_no_frames_no_pictures_and_odd_codecs(tmp_path: Path) -> None:
    empty = tmp_path / "empty.mkv"
    with av.open(str(empty), "w") as container:
        stream = container.add_stream("libx264", 5)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        container.start_encoding()
    assert "no clip that can be read (End of file)" in refusal_of(empty)
    assert "only sound" in refusal_of(sound_alone(tmp_path / "song.mp4"))
    odd = write_video(tmp_path / "odd.mkv", [plain("red")] * 3, codec="ffv1")
    assert "with the codec ffv1, which is not read; save it with H.264" in refusal_of(odd)


@pytest.mark.parametrize(
    "content",
    [
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        b"ffconcat version 1.0\nfile '/etc/passwd'\n",
        b"<?xml version='1.0'?><MPD><BaseURL>http://127.0.0.1/</BaseURL></MPD>",
        b"RIFF\x00\x00\x00\x00AVI LIST",
        as_bytes(plain("red"), "JPEG"),
        b"\0" * 5000,
        b"x",
    ],
)
@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_what_is_no_clip_opens_nothing(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    refusal_of(tmp_path / name)


def test_damage_is_a_sentence_or_passed_over(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    frames = [plain((9 * i, 90, 255 - 9 * i)) for i in range(20)]
    made = [write_video(tmp_path / name, frames) for name in ("a.mp4", "a.mkv", "a.webm")]
    made += [write_animation(tmp_path / name, frames) for name in ("a.gif", "a.webp", "a.png")]
    for path in made:
        content = path.read_bytes()
        for _ in range(4 if path.suffix in (".mp4", ".mkv", ".webm") else 25):
            damaged = bytearray(content)
            for place in rng.integers(0, len(content), 12):
                damaged[place] = rng.integers(0, 256)
            path.write_bytes(damaged)
            with open_image_file(path, path.name) as file:
                if not is_clip(file, path.name):
                    continue
                try:
                    found = list(chosen_frames(file, path.name))
                except ImageError as error:
                    found, said = [], str(error)
                    assert said.startswith(path.name)
                assert len(found) <= MOST


@pytest.mark.parametrize(
    "program",
    [
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import sys; sys.stdout.buffer.write(bytes(10))",
        "import struct, sys; sys.stdout.buffer.write(struct.pack('<dIIII', 0, 0, 1 << 31, 9, 0))",
        "import time; time.sleep(600)",
    ],
)
def test_a_decoder_that_fails_takes_nothing_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    path = write_video(tmp_path / "a.mp4", [plain("red")] * 5)
    child = tmp_path / "child.py"
    child.write_text(program)
    with monkeypatch.context() as patch:
        patch.setattr(videos, "_CHILD", child)
        patch.setattr(videos, "_PATIENCE", 1.0 if "sleep" in program else 60.0)
        assert "it ended its decoder, or took too much time or memory" in refusal_of(path)
    assert len(frames_of(path)) == 5


@pytest.mark.skipif(sys.platform != "linux", reason="the system bounds no addresses")
def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "a.mp4", [plain("red", (1920, 1080))] * 2)
    assert len(frames_of(path)) == 2
    monkeypatch.setattr(videos, "MEMORY", 64 * 2**20)
    refusal_of(path)
