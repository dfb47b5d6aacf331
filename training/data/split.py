"""Splits: captioned images, clips or features, and their annotations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from PIL import Image

from polyview.models.preprocess import Preprocess
from polyview.training.data.image_files import ImageFiles, thread_map
from polyview.training.scenes.foils import Foil

MAX_STRIDE = 3  # maximum stride of clip frames in training (PVSE's data.py)


@dataclass(frozen=True)
class VisibleObjects:
    """The objects in images, and those that captions mention.

    Attributes:
        masks: (H, W) uint8 for each image, i + 1 where object i is visible, 0 elsewhere. In
            `Split.moments`, (objects, frames) bool for each clip, True where an object is visible.
        mentions: for each caption, the indices of the objects of the image that it mentions.
        names: for each image and object, all names of the object's class.
    """

    masks: Sequence[np.ndarray]
    mentions: Sequence[Sequence[int]]
    names: Sequence[Sequence[tuple[str, ...]]] = ()


@dataclass(frozen=True)
class Split:
    """Captioned images: rendered scenes, photographs, precomputed features, a pack's gallery.

    Attributes:
        captions: N_txt texts, grouped by image.
        image_of: (N_txt,) int64, the row of each caption's image.
        images: N_img images, decoded on access; empty if there are only features. For clips, all
            frames, clip by clip.
        frames: number of `images` in each of the N_img items; more than 1 for clips with images.
        features: (N_img, N, d) float, often float16 and memory-mapped: an array, `Copies` (several
            versions of each image), `Pixels` (for an image encoder that is also trained) or `Clips`
            (a feature for each frame). Empty until `training/data/features.py` computes them.
        summary_token: whether the first of an image's N features is a summary ([CLS]).
        lengths: (N_img,) int64, the number of each image's features if they are padded, else None.
        boxes: (N_img, N, 4) boxes of the features in relative xyxy, if they differ between images.
        folder: the data folder joined with the name of the split, such as `data/scenes/train`.
        relevant: returns the rows of all images that satisfy each caption; None if only the
            caption's own image is known.
        moments: the frames in which objects of clips are visible, if known.
        alike: (N_img,) int64, equal for images that are hard to distinguish, such as clips that
            differ only in order; None if unknown. Training puts captions of alike images into the
            same batches (`TrainConfig.captions_per_image`).
        kinds: the kind of each caption; empty if captions have no kinds.
        objects: the objects of images and those that captions mention, if known.
        foils: returns pairs of true and false captions, if available.

    Raises ValueError if features or images disagree with the captions.
    """

    captions: list[str]
    image_of: np.ndarray
    images: Sequence[Image.Image] = ()
    features: np.ndarray | Copies | Pixels | Clips = field(
        default_factory=lambda: np.empty((0, 0, 0))
    )
    summary_token: bool = False
    lengths: np.ndarray | None = None
    boxes: np.ndarray | None = None
    frames: int = 1
    folder: Path = Path()
    relevant: Callable[[], list[np.ndarray]] | None = None
    alike: np.ndarray | None = None
    kinds: Sequence[str] = ()
    objects: VisibleObjects | None = None
    moments: VisibleObjects | None = None
    foils: Callable[[], list[Foil]] | None = None

    def __post_init__(self) -> None:
        if len(self.captions) != len(self.image_of):
            raise ValueError(f"{len(self.captions)} captions, but {len(self.image_of)} image rows")
        max_image = int(self.image_of.max()) if len(self.image_of) else -1
        if not 0 <= max_image < self.image_count:
            raise ValueError(f"image rows must be 0 to {self.image_count - 1}, not {max_image}")

    @property
    def image_count(self) -> int:
        """The number of images or clips, N_img."""
        return len(self.features) or len(self.images) // self.frames

    def with_frames(self, frames: int) -> Split:
        """If `frames` is not 0, limits clips to that number; raises ValueError without `Clips`."""
        if not frames:
            return self
        if not isinstance(self.features, Clips):
            kind = "clips with precomputed features (training/data/videos.py)"
            reason = f"frames={frames} is for {kind}, and {self.folder.parent} holds none"
            raise ValueError(f"{reason}; set frames=0")
        clips = self.features.limit_frames(frames)
        return replace(self, features=clips, lengths=clips.lengths)

    def limit_captions(self, count: int) -> Split:
        """Selects the first `count` captions of each image, or all captions if `count` is 0.

        Raises ValueError for captions with kinds, objects or known relevant images.
        """
        if not count:
            return self
        if self.relevant is not None or self.objects is not None or self.kinds:
            reason = f"{self.folder.parent} has captions with kinds or objects"
            raise ValueError(f"{reason}; set ranked_captions=0, not {count}")
        starts = np.searchsorted(self.image_of, self.image_of)  # first caption of the same image
        return self.select(np.flatnonzero(np.arange(len(self.captions)) - starts < count))

    def mask(self, rows: np.ndarray | slice, size: int) -> np.ndarray:
        """Returns the mask (B, size) of features that are not padding, for the images in `rows`."""
        count = len(np.arange(self.image_count)[rows])
        if self.lengths is None:
            return np.ones((count, size), np.bool_)
        return np.arange(size) < self.lengths[rows, None]

    def head(self, count: int) -> Split:
        """Selects the captions of the first `count` images, or all captions if `count` is 0."""
        return self.select(np.flatnonzero(self.image_of < count)) if count else self

    def select_photographs(self, rows: np.ndarray) -> Split:
        """Selects the photographs at ascending `rows` (n,), and their captions."""
        assert isinstance(self.images, ImageFiles)
        images = ImageFiles([self.images.paths[row] for row in rows])
        split = self.select(np.flatnonzero(np.isin(self.image_of, rows)))
        return replace(split, images=images, image_of=np.searchsorted(rows, split.image_of))

    def with_pixels(self, preprocess: Preprocess) -> Split:
        """Replaces the features by pixels, for an image encoder that is also trained."""
        return replace(self, features=Pixels(self.images, preprocess))

    def require_images(self) -> None:
        """Raises ValueError if there are no images to train an image encoder on."""
        if not len(self.images):
            reason = "holds precomputed features, so no image encoder can be trained"
            advice = "set backbone_frozen=true, or name a folder with images"
            raise ValueError(f"{self.folder.parent} {reason}; {advice}")

    def refuse_copies(self, setting: str, copies: int) -> None:
        """Raises ValueError if `copies` is more than 1 and the images are not photographs."""
        if copies > 1 and not isinstance(self.images, ImageFiles):
            reason = f"crops photographs, and {self.folder.parent} holds none"
            raise ValueError(f"{setting}={copies} {reason}; set {setting}=1")

    def require_twins(self) -> np.ndarray:
        """Returns the twin of each clip; raises ValueError without twins or order captions."""
        if "order" not in self.kinds or self.alike is None:
            requirement = (
                f"clips rendered with `scenes --moving`, but {self.folder.parent} has none"
            )
            raise ValueError(f"exchange_halves and order_epochs need {requirement}; omit both")
        return self.alike

    def select(self, texts: np.ndarray) -> Split:
        """Selects the captions in rows `texts` (n,), with their kinds."""
        captions = [self.captions[text] for text in texts]
        kinds = [self.kinds[text] for text in texts] if self.kinds else ()
        return replace(self, captions=captions, image_of=self.image_of[texts], kinds=kinds)


def flatten_captions(captions: Sequence[Sequence[str]]) -> tuple[list[str], np.ndarray]:
    """Flattens the captions of images; also returns the row (N_txt,) of each caption's image."""
    rows = np.repeat(np.arange(len(captions)), [len(texts) for texts in captions])
    return [text for texts in captions for text in texts], rows


class Copies:
    """Features (N_img, N, d) of several versions of images; indexing reads the first version."""

    def __init__(self, versions: Sequence[np.ndarray]) -> None:
        self.versions, self.shape = versions, versions[0].shape

    def __len__(self) -> int:
        return len(self.versions[0])

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        return self.versions[0][rows]

    def sample(self, rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Returns the features (B, N, d) of a random version of each image in `rows` (B,)."""
        indices = random.integers(len(self.versions), size=len(rows))
        return np.stack([self.versions[i][row] for i, row in zip(indices, rows, strict=True)])


class Clips:
    """Frame features (N_img, N, d) of clips, padded with zeros to the N frames of the longest clip.

    `paths` are .npy files of floats (T, d), a row for each of a clip's T frames in time order.

    Attributes:
        lengths: (N_img,) int64, the number of frames read from each clip.

    Raises ValueError if a file is not an array of floats (T, d), or d differs between the files.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        counts, widths = zip(*(_load_features(path).shape for path in paths), strict=True)
        self._width = widths[0]
        for path, width in zip(paths, widths, strict=True):
            if width != self._width:
                expected = f"{paths[0]} has {self._width}; encode all clips with one encoder"
                raise ValueError(f"{path} has features of width {width}, but {expected}")
        self.lengths = self._totals = np.array(counts, np.int64)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N_img, N, d); N is the maximum of `lengths`."""
        return len(self._paths), int(self.lengths.max()), self._width

    def limit_frames(self, frames: int) -> Clips:
        """Returns a copy that reads at most `frames` evenly spaced frames per clip."""
        clips = copy.copy(self)
        clips.lengths = np.minimum(self._totals, frames)
        return clips

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        frames_by_row = []
        for row in np.arange(len(self))[rows].tolist():
            total, count = self._totals[row], self.lengths[row]
            # the frames in the middle of `count` equal parts of the clip
            frames_by_row.append((row, (2 * np.arange(count) + 1) * total // (2 * count)))
        return self._read(frames_by_row)

    def sample(self, rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Returns features (B, N, d) of the clips in `rows` (B,).

        Draws a random start and stride for clips that `limit_frames` shortens. PVSE, section 3.5:
        "for videos longer than 8 frames we select random subsequences".
        """
        frames_by_row = []
        for row in rows.tolist():
            total, count, step = int(self._totals[row]), int(self.lengths[row]), 1
            if count < total:
                step = int(random.integers(min(MAX_STRIDE, (total - 1) // max(count - 1, 1)))) + 1
            start = int(random.integers(total - step * (count - 1)))
            frames_by_row.append((row, start + step * np.arange(count)))
        return self._read(frames_by_row)

    def _read(self, frames_by_row: list[tuple[int, np.ndarray]]) -> np.ndarray:
        """Reads features (B, N, d), padded; `frames_by_row` has the row and frames of each clip."""
        arrays = [_load_features(self._paths[row])[frames] for row, frames in frames_by_row]
        dtype = np.result_type(*arrays) if arrays else np.float32
        out = np.zeros((len(arrays), *self.shape[1:]), dtype)
        for array, padded in zip(arrays, out, strict=True):
            padded[: len(array)] = array
        return out


def _load_features(path: Path) -> np.ndarray:
    return load_array(path, 2, "frames, numbers")


def load_array(path: Path, axes: int, layout: str) -> np.ndarray:
    """Memory-maps a .npy file; raises ValueError if it is empty or not floats with `axes` axes."""
    try:
        values: np.ndarray = np.load(path, mmap_mode="r")
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is not a complete .npy file of numbers: {error}") from error
    if values.ndim != axes or 0 in values.shape or values.dtype.kind != "f":
        raise ValueError(f"{path} must hold floats ({layout}), not {values.dtype} {values.shape}")
    return values


class Pixels:
    """Pixels (N_img, 3, S, S) float32 of images with sides S, decoded on access."""

    def __init__(self, images: Sequence[Image.Image], preprocess: Preprocess) -> None:
        self.images, self.preprocess = images, preprocess
        self.shape = (len(images), 3, preprocess.size, preprocess.size)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        def square(row: int) -> np.ndarray:
            return np.asarray(self.preprocess.square(self.images[row]), np.uint8)

        squares = thread_map(square, np.arange(len(self))[rows].tolist())
        return self.preprocess.planes(np.stack(squares))


def with_exchanged_halves(split: Split) -> Split:
    """Appends a copy of each clip of the moving world with its halves exchanged.

    Not in the papers. A clip has one action in each half (`training/scenes/motion.py`), so the copy
    shows the actions of the clip's twin in front of the clip's own background. The copy has the
    "free" captions of the clip and the "order" captions of the twin. It has no "motion" captions,
    because the movement may be cut in two. The features (N_img, N, d) of a clip are in time order.
    Twins are in rows 2 k and 2 k + 1. Raises ValueError for clips without twins.
    """
    alike = split.require_twins()
    assert isinstance(split.features, np.ndarray)
    kinds, count = np.array(split.kinds), split.image_count
    free, order = (np.flatnonzero(kinds == kind) for kind in ("free", "order"))
    # x ^ 1 is the row of the twin of clip x, and x + count is the row of the copy of clip x
    owners = np.concatenate([split.image_of[free], split.image_of[order] ^ 1]) + count
    sorting = np.argsort(owners, kind="stable")
    texts = np.concatenate([free, order])[sorting]
    exchanged = np.roll(split.features, split.features.shape[1] // 2, axis=1)
    return replace(
        split,
        captions=split.captions + [split.captions[text] for text in texts],
        image_of=np.concatenate([split.image_of, owners[sorting]]),
        features=np.concatenate([split.features, exchanged]),
        alike=np.concatenate([alike, alike + alike.max() + 1]),
        kinds=[*split.kinds, *kinds[texts].tolist()],
        relevant=None,
        moments=None,
    )
