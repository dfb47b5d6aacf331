"""Small folders of clips in the layouts of the published data sets."""

import json
from pathlib import Path

import numpy as np

LAYOUTS = ("tgif", "mrw", "msrvtt", "vatex")
WIDTH = 12
PARTS = {"train": 8, "val": 4, "test": 4}
SENTENCES = {"tgif": 1, "mrw": 1, "msrvtt": 3, "vatex": 2}


def names(part: str) -> list[str]:
    return [f"{part}_{i}" for i in range(PARTS[part])]


def sentence(clip: str, which: int) -> str:
    return f"a dog runs in {clip.replace('_', ' ')} and jumps {'again ' * which}".strip()


def write_clips(folder: Path, layout: str) -> Path:
    """Writes annotations, splits and features of 8 training, 4 validation and 4 test clips.

    Clip i of a split has 3 i + 1 frames; the first number of frame t is t.
    """
    folder.mkdir()
    write = {"tgif": _tgif, "mrw": _mrw, "msrvtt": _msrvtt, "vatex": _vatex}[layout]
    write(folder, SENTENCES[layout])
    (folder / "features").mkdir()
    random = np.random.default_rng(0)
    for part in PARTS:
        for i, clip in enumerate(names(part)):
            frames = random.normal(size=(3 * i + 1, WIDTH)).astype(np.float16)
            frames[:, 0] = np.arange(len(frames))
            np.save(folder / "features" / f"{clip}.npy", frames)
    return folder


def _url(clip: str) -> str:
    return f"https://38.media.tumblr.com/9f6c25cc/{clip}.gif"


def _tgif(folder: Path, count: int) -> None:
    rows = [f"{_url(c)}\t{sentence(c, k)}" for p in PARTS for c in names(p) for k in range(count)]
    (folder / "tgif-v1.0.tsv").write_text("\n".join(rows) + "\n")
    (folder / "splits").mkdir()
    for part in PARTS:
        (folder / f"splits/{part}.txt").write_text("".join(f"{_url(c)}\n" for c in names(part)))


def _mrw(folder: Path, count: int) -> None:
    rows = [
        {"id": c, "sentence": sentence(c, k), "images": {"mp4_url": f"{_url(c)}.mp4"}}
        for part in PARTS
        for c in names(part)
        for k in range(count)
    ]
    (folder / "mrw-v1.0.json").write_text(json.dumps(rows))
    (folder / "split").mkdir()
    for part, file in {"train": "train", "val": "valid", "test": "test"}.items():
        (folder / f"split/{file}.tsv").write_text("".join(f"{c}\n" for c in names(part)))


def _msrvtt(folder: Path, count: int) -> None:
    called = {"train": "train", "val": "validate", "test": "test"}
    for file, parts in (("train_val", ("train", "val")), ("test", ("test",))):
        clips = [(part, c) for part in parts for c in names(part)]
        videos = [{"video_id": c, "split": called[p], "url": _url(c)} for p, c in clips]
        sentences = [
            {"video_id": c, "caption": sentence(c, k), "sen_id": k}
            for k in range(count)
            for _, c in reversed(clips)
        ]
        content = {"info": {}, "videos": videos, "sentences": sentences}
        (folder / f"{file}_videodatainfo.json").write_text(json.dumps(content))


def _vatex(folder: Path, count: int) -> None:
    called = {
        "train": "training_v1.0",
        "val": "validation_v1.0",
        "test": "public_test_english_v1.1",
    }
    for part, file in called.items():
        rows = [
            {"videoID": c, "enCap": [sentence(c, k) for k in range(count)], "chCap": ["一只狗"]}
            for c in names(part)
        ]
        (folder / f"vatex_{file}.json").write_text(json.dumps(rows, ensure_ascii=False), "utf-8")
    (folder / "vatex_private_test_without_annotations.json").write_text('[{"videoID": "x"}]')
