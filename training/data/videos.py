"""Clips with captions, in the layouts of the published data sets.

A folder contains the published annotations and, in `features/`, a file for each clip, computed by
an image or video encoder: `<clip>.npy`, float (T, d), a row for each frame in time order. T may
differ between clips.

    tgif-v1.0.tsv      TGIF (Li et al., CVPR 2016; raingo/TGIF-Release, data/): each line has a
                       GIF's URL, a tab and a sentence; in PVSE's copy (tgif-v1.0-gulp.tsv) also a
                       tab and the number of frames. A clip's name is the stem of its URL
    mrw-v1.0.json      MRW (Song and Soleymani, CVPR 2019; yalesong/pvse, data/): a list of
                       {"id", "sentence"}
    *videodatainfo*.json    MSR-VTT (Xu et al., CVPR 2016), one or two files:
                       {"videos": [{"video_id", "split"}], "sentences": [{"video_id", "caption"}]},
                       where the splits are "train", "validate" and "test"
    vatex_*.json       VaTeX (Wang et al., ICCV 2019), a file for each of the splits training,
                       validation and public_test: a list of {"videoID", "enCap": [sentences]}

Lists of clips override the splits of the annotations; TGIF and MRW need lists. A list is a file in
`splits/` or `split/`, with a clip's name or URL on each line. It is called `train`, `val`, `valid`
or `test`, and ends in .txt or .tsv. Files with other names define further splits. `absent.txt`
lists unavailable clips, which are left out.
"""

import json
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

from polyview.training.data.split import Clips, Split, flatten_captions

FEATURES = "features"
ABSENT_LIST = "absent.txt"
_VATEX = {"training": "train", "validation": "val", "public_test": "test"}
_Entries = Iterator[tuple[str, str, str | None]]  # clip, sentence, split


def is_videos(folder: Path) -> bool:
    """Returns whether a folder holds annotations in one of these layouts."""
    return bool(_find_annotations(folder))


def open_videos(folder: Path, name: str) -> Split:
    """Opens features and captions of the split "train", "val" or "test", or of another list.

    Raises FileNotFoundError if the split does not exist, and ValueError if annotations, lists and
    features disagree or a file is damaged.
    """
    captions: dict[str, list[str]] = {}
    splits: dict[str, str | None] = {}
    for path, reader in _find_annotations(folder):
        for clip, sentence, split in _check_entries(path, reader(path)):
            captions.setdefault(clip, []).append(sentence)
            splits[clip] = split
    aliases = ("val", "valid") if name == "val" else (name,)
    lists = product(("splits", "split"), aliases, (".txt", ".tsv"))
    listed_clips = _read_list(*(folder / parent / f"{alias}{end}" for parent, alias, end in lists))
    if listed_clips is None:
        listed_clips = [clip for clip, split in splits.items() if split == name]
    absent_clips = set(_read_list(folder / ABSENT_LIST) or ())
    clips = [clip for clip in dict.fromkeys(listed_clips) if clip not in absent_clips]
    if not clips:
        reason = f"none in its annotations, and no splits/{name}.txt"
        raise FileNotFoundError(f'{folder} has no clips of the split "{name}": {reason}')
    files = {clip: folder / FEATURES / f"{clip}.npy" for clip in clips}
    for item, missing in (
        ("sentence", [clip for clip in clips if clip not in captions]),
        (f"file in {FEATURES}/", [clip for clip, path in files.items() if not path.is_file()]),
    ):
        if missing:
            fault = f"{len(missing):,} of {len(clips):,} clips have no {item}"
            advice = f"add it, or list unavailable clips in {ABSENT_LIST}, one per line"
            raise ValueError(f"{folder}: {fault} (the first is {missing[0]}); {advice}")
    features = Clips(list(files.values()))
    texts, rows = flatten_captions([captions[clip] for clip in clips])
    return Split(texts, rows, features=features, lengths=features.lengths, folder=folder / name)


def _find_annotations(folder: Path) -> list[tuple[Path, Callable[[Path], _Entries]]]:
    """Returns the annotation files of a folder, each with the function that reads it."""
    readers: dict[str, Callable[[Path], _Entries]] = {"tgif-*.tsv": _read_tgif}
    readers |= {"mrw-*.json": _read_mrw, "*videodatainfo*.json": _read_msr_vtt}
    readers |= dict.fromkeys((f"vatex_{part}_*.json" for part in _VATEX), _read_vatex)
    return [(path, read) for glob, read in readers.items() for path in sorted(folder.glob(glob))]


def _read_tgif(path: Path) -> _Entries:
    for line in path.read_text("utf-8").split("\n"):
        if line.strip():
            url, sentence, *_ = [*line.split("\t"), ""]  # the sentence is "" in a line without tabs
            yield _stem(url), sentence, None


def _read_mrw(path: Path) -> _Entries:
    for entry in json.loads(path.read_text("utf-8")):
        yield entry["id"], entry["sentence"], None


def _read_msr_vtt(path: Path) -> _Entries:
    content = json.loads(path.read_text("utf-8"))
    splits = {video["video_id"]: video["split"] for video in content["videos"]}
    for entry in content["sentences"]:
        split = splits[entry["video_id"]]
        yield entry["video_id"], entry["caption"], "val" if split == "validate" else split


def _read_vatex(path: Path) -> _Entries:
    split = next(split for part, split in _VATEX.items() if path.name.startswith(f"vatex_{part}_"))
    for entry in json.loads(path.read_text("utf-8")):
        for sentence in entry["enCap"]:
            yield entry["videoID"], sentence, split


def _check_entries(path: Path, entries: _Entries) -> _Entries:
    """Yields the entries; raises ValueError with the file and the number of a damaged entry."""
    number = 0
    try:
        for number, (clip, sentence, split) in enumerate(entries, 1):  # noqa: B007
            line = " ".join(sentence.split())
            if not line or Path(clip).name != clip:
                raise ValueError(f"clip {clip!r:.60} or sentence {line!r:.60} is not valid")
            yield clip, line, split
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = f"cannot be read ({type(error).__name__}: {error})"
        advice = "correct it, or fetch the file again"
        raise ValueError(f"{path}: entry {number} {reason}; {advice}") from error


def _stem(line: str) -> str:
    """Returns the name of a clip, given the name or a URL such as ".../tumblr_mev_500.gif"."""
    return line.strip().rpartition("/")[2].removesuffix(".gif")


def _read_list(*paths: Path) -> list[str] | None:
    """Reads the clips of the first list that exists; None if no list exists."""
    for path in paths:
        if path.is_file():
            return [_stem(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    return None
