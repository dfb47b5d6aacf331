"""Frames of clips: their choice and times; truncated, damaged and hostile clips."""

import struct
import sys
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from polyview.app.gallery import images, video
from polyview.app.gallery.images import ImageError, decode, open_file, read_frames
from polyview.app.gallery.scan import CollectionImage
from polyview.app.gallery.video import MAX_FRAMES, Moment
from polyview.training.data.image_files import read_frames as training_frames
from tests.app.clip_files import plain, write_animation, write_video
from tests.app.conftest import saved

COLOURS = {"red": (255, 0, 0), "lime": (0, 255, 0), "blue": (0, 0, 255)}
ANIMATIONS = (".gif", ".webp", ".png", ".apng")
GREY = [plain((10 * i, 10 * i, 10 * i)) for i in range(24)]


def frames_of(path: Path, together: int = 1) -> list[tuple[Moment, Image.Image]]:
    with open_file(path, path.name) as file:
        frames = list(read_frames(file, path.name, together))
    return [(moment, image) for moment, image in frames if moment is not None]


def mean_colour(image: Image.Image) -> tuple[int, ...]:
    """The mean of an image's pixels."""
    return tuple(np.asarray(image, np.float64).reshape(-1, 3).mean(axis=0).round().astype(int))


def colour_of(image: Image.Image) -> str:
    seen = np.array(mean_colour(image))
    return min(COLOURS, key=lambda name: float(np.square(seen - COLOURS[name]).sum()))


def check_found_again(path: Path, moment: Moment, image: Image.Image) -> None:
    again = CollectionImage(0, path, path.name, moment=moment).decode()
    assert again.tobytes() == image.tobytes(), moment


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv", ".webm"])
def test_one_frame_of_each_second_is_chosen(tmp_path: Path, suffix: str) -> None:
    """Twelve seconds at four frames a second."""
    names = [list(COLOURS)[second // 4] for second in range(12)]
    frames = [plain(name) for name in names for _ in range(4)]
    path = write_video(tmp_path / f"a{suffix}", frames, rate=4)
    results = frames_of(path)
    assert [round(moment.seconds, 1) for moment, _ in results] == [i + 0.5 for i in range(12)]
    assert [colour_of(image) for _, image in results] == names
    assert all(abs(moment.frame - moment.seconds * 4) <= 1 for moment, _ in results)
    check_found_again(path, *results[7])


@pytest.mark.parametrize("suffix", ANIMATIONS)
def test_frames_of_an_animation_and_of_a_set(tmp_path: Path, suffix: str) -> None:
    """Each frame is chosen once; a set has frames in the middle of equal slots, as in training."""
    path = write_animation(tmp_path / f"a{suffix}", [*map(plain, COLOURS)], [400, 1500, 500])
    results = frames_of(path)
    assert [moment.frame for moment, _ in results] == [0, 1, 2]
    assert [round(moment.seconds, 2) for moment, _ in results] == [0.15, 0.45, 1.95]
    assert [colour_of(image) for _, image in results] == list(COLOURS)
    ms = [40, 300, 20, 20, 500, 120]
    path = write_animation(tmp_path / f"b{suffix}", GREY[: len(ms)], ms)
    frames = frames_of(path, 16)
    expected = [mean_colour(image) for image in training_frames(path, 16)]
    assert [mean_colour(image) for _, image in frames] == expected
    check_found_again(path, *frames[9])
    for result in results:
        check_found_again(tmp_path / f"a{suffix}", *result)


def test_the_default_image_of_an_animated_png_is_no_frame(tmp_path: Path) -> None:
    path, [first, *others] = tmp_path / "a.png", [plain(colour) for colour in COLOURS]
    first.save(path, save_all=True, append_images=others, duration=500, default_image=True)
    results = frames_of(path)
    assert [(m.frame, m.seconds) for m, _ in results] == [(1, 0.0625), (2, 0.5625)]
    assert [colour_of(image) for _, image in results] == ["lime", "blue"]
    check_found_again(path, *results[1])


@pytest.mark.parametrize("suffix", [".gif", ".webp", ".png", ".tif"])
def test_a_still_image_is_no_clip(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    pages = [plain("blue")] if suffix == ".tif" else []
    plain("red").save(path, save_all=True, append_images=pages)
    with open_file(path, path.name) as file:
        [(moment, image)] = read_frames(file, path.name)
    assert (moment, colour_of(image)) == (None, "red")


def test_times_of_a_variable_frame_rate(tmp_path: Path) -> None:
    """Four seconds, two at a low and two at a high rate."""
    ticks = [*range(0, 200, 50), *range(200, 400, 10)]
    path = write_video(tmp_path / "a.mp4", GREY, 100, ticks)
    results = frames_of(path, 16)
    seconds = [moment.seconds for moment, _ in results]
    np.testing.assert_allclose(np.diff(seconds), seconds[0] * 2, atol=1e-6)
    starts = np.array(ticks) / 100
    for moment, image in results:
        assert moment.frame == np.flatnonzero(starts <= moment.seconds).max()
        assert abs(mean_colour(image)[0] - 10 * moment.frame) < 6
    check_found_again(path, *results[11])


def test_a_long_clip_has_64_evenly_spaced_frames(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", [plain("red", (16, 16))] * 70, rate=1)
    seconds = [moment.seconds for moment, _ in frames_of(path)]
    np.testing.assert_allclose(seconds, (np.arange(MAX_FRAMES) + 0.5) * 70 / MAX_FRAMES, atol=1e-6)


def test_key_frames_of_a_very_long_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two minutes with a key frame every ten seconds, which are all chosen."""
    path = write_video(tmp_path / "a.mp4", [plain("red", (16, 16))] * 600, rate=5, g="50")
    monkeypatch.setattr(video, "MAX_ALL_PIXELS", 1)
    with av.open(str(path)) as container:
        moments = [moment for moment, _ in video.Clip(container).select(1, None)]
    assert [moment.frame for moment in moments] == list(range(0, 600, 50))
    assert [moment.seconds for moment in moments] == pytest.approx(range(0, 120, 10), abs=0.01)


def turned(path: Path) -> Path:
    """Marks an MP4 as rotated by 90 degrees clockwise."""
    content = bytearray(path.read_bytes())
    matrix = content.index(b"tkhd") + 44
    turn = (0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
    content[matrix : matrix + 36] = b"".join(n.to_bytes(4, "big", signed=True) for n in turn)
    path.write_bytes(content)
    return path


def test_a_video_is_upright(tmp_path: Path) -> None:
    image = plain("red", (64, 48))
    image.paste("blue", (0, 0, 64, 24))
    path = turned(write_video(tmp_path / "a.mp4", [image] * 5))
    _, upright = frames_of(path)[0]
    assert upright.size == (48, 64)
    assert colour_of(upright.crop((28, 4, 44, 60))) == "blue"  # the former top
    assert colour_of(upright.crop((4, 4, 20, 60))) == "red"


def refusal_of(path: Path) -> str:
    with pytest.raises(ImageError) as caught:
        frames_of(path)
    sentence = str(caught.value)
    assert sentence.startswith(path.name)
    assert "\n" not in sentence
    assert len(sentence) < 200
    return sentence


def test_large_frames_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "a.mp4", [plain("red", (2560, 1440))])
    assert [image.size for _, image in frames_of(path)] == [(1024, 576)]
    if sys.platform == "linux":  # other systems do not limit the address space
        monkeypatch.setattr(video, "MAX_MEMORY", 64 * 2**20)
        refusal_of(path)


def test_frames_of_16k_and_more(tmp_path: Path) -> None:
    path, small = tmp_path / "large.mov", saved(plain("gray", (1000, 1000)), "JPEG")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", 5)
        stream.width = stream.height = 1000
        stream.pix_fmt = "yuvj420p"
        packet = av.Packet(small)
        packet.pts = packet.dts = 0
        packet.time_base, packet.stream = Fraction(1, 5), stream
        container.mux(packet)
    content, stated = path.read_bytes(), struct.pack(">2H", 1000, 1000)
    for side, why in (
        (8640, "8640 x 8640 pixels, more than the 36 million allowed"),
        (65_500, "no frame that can be decoded"),
    ):
        path.write_bytes(content.replace(stated, struct.pack(">2H", side, side)))
        assert why in refusal_of(path)


def test_animations_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_animation(tmp_path / "a.gif", [plain("red", (1, 1)), plain("blue", (1, 1))])
    content = path.read_bytes()
    for size, sentence in (
        (5000, "has frames of 5000 x 5000 pixels"),
        (60_000, "far more than the 100 million"),
    ):
        path.write_bytes(content[:6] + struct.pack("<2H", size, size) + content[10:])
        assert sentence in refusal_of(path)
    second = content.index(b",", content.rindex(b"!\xf9") + 8)  # larger than the first frame
    large = struct.pack("<4H", 0, 0, 5000, 5000)
    path.write_bytes(content[: second + 1] + large + content[second + 9 :])
    assert "has frames of 5000 x 5000 pixels" in refusal_of(path)
    with path.open("rb") as file, pytest.raises(ImageError, match="frames of 5000 x 5000"):
        decode(file, path.name, Moment(0.1, 1))
    start = content.index(b"!\xf9")
    frame = content[start : content.index(b"!\xf9", start + 1)]
    path.write_bytes(content[:start] + frame * 100_000 + b";")
    monkeypatch.setattr(images, "MAX_FRAMES", 500)
    assert "a.gif has more than 500 frames" in refusal_of(path)
    monkeypatch.setattr(images, "MAX_ALL_PIXELS", 1_000_000)
    frames = [plain((i, 0, 0), (400, 300)) for i in range(9)]
    path = write_animation(tmp_path / "a.webp", frames)
    assert "or 1 million pixels in all; save it as MP4" in refusal_of(path)


def test_truncated_clips(tmp_path: Path) -> None:
    noise = np.random.default_rng(5).integers(0, 255, (40, 48, 64, 3), np.uint8)
    path = write_video(tmp_path / "cut.mkv", map(Image.fromarray, noise), g="5")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert 1 <= len(frames_of(path)) < 8
    path.write_bytes(content[:300])
    refusal_of(path)


def test_refused_clips(tmp_path: Path) -> None:
    for name, codec in (("empty.mkv", "libx264"), ("song.mp4", "aac")):
        with av.open(str(tmp_path / name), "w") as container:
            container.add_stream(codec, 44100 if codec == "aac" else 5)
            container.start_encoding()
    assert "not a clip that can be read (End of file)" in refusal_of(tmp_path / "empty.mkv")
    assert "no video stream" in refusal_of(tmp_path / "song.mp4")
    odd = write_video(tmp_path / "odd.mkv", [plain("red")] * 3, codec="ffv1")
    assert "is encoded with ffv1, which is not supported; save it with H.264" in refusal_of(odd)
    for content in (
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        b"ffconcat version 1.0\nfile '/etc/passwd'\n",
        b"<?xml version='1.0'?><MPD><BaseURL>http://127.0.0.1/</BaseURL></MPD>",
        saved(plain("gray"), "JPEG"),
    ):
        (tmp_path / "a.mp4").write_bytes(content)
        refusal_of(tmp_path / "a.mp4")


def test_damaged_clips_are_read_or_refused(tmp_path: Path) -> None:
    rng, frames = np.random.default_rng(7), [plain((9 * i, 90, 255 - 9 * i)) for i in range(20)]
    for suffix in (".mp4", ".mkv", *ANIMATIONS[:3]):
        write = write_animation if suffix in ANIMATIONS else write_video
        path = write(tmp_path / f"a{suffix}", frames)
        content = np.frombuffer(path.read_bytes(), np.uint8)
        for _ in range(20 if suffix in ANIMATIONS else 2):
            damaged = content.copy()
            damaged[rng.integers(0, len(content), 12)] = rng.integers(0, 256, 12)
            path.write_bytes(damaged.tobytes())
            with suppress(ImageError):
                assert len(frames_of(path)) <= MAX_FRAMES


def test_failing_decoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "a.mp4", [plain("red")] * 5)
    decoder = tmp_path / "decoder.py"
    write = "import struct, sys, time\nwrite = sys.stdout.buffer.write\n"
    for program in (
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "write(bytes(10))",
        "write(struct.pack('<dIII', 0, 0, 1 << 31, 9))",
        "while True: write(struct.pack('<dIII', 0, 0, 1, 1) + bytes(3))",
        "time.sleep(600)",
    ):
        decoder.write_text(write + program)
        with monkeypatch.context() as patch:
            patch.setattr(video, "DECODER", decoder)
            patch.setattr(video, "MAX_SECONDS", 0.5 if "sleep" in program else 60.0)
            assert "its decoder ended, or took too much time or memory" in refusal_of(path)
    assert len(frames_of(path)) == 5
