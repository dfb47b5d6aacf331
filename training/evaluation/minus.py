"""What a minus is worth: methods that read no "without" find what lacks something by subtracting.

`python -m training.evaluation.minus --pack app/bundled/scenes_twins`

Each scene has a caption of what is not there, and a twin where it is (`training/scenes/twins.py`).
It is asked as that sentence ("a rose and some tents, but no lizard"), and as whoever knows the app
asks it ("a rose and a tent - 0.5: a lizard", `app/search/query.py`).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from export.pack.gallery import GalleryImage, load_gallery
from export.pack.reading import PackError
from export.runtime import Runtime
from models import Views
from training.data.pack_gallery import from_pack
from training.evaluation.evaluator import image_features
from training.scenes.captions import with_article

WEIGHTS = (0.0, 0.25, 0.5, 1.0)  # of what is taken away


class Absence(NamedTuple):
    """A caption of what is not there: as it stands, what it says is there, and what is not."""

    sentence: str
    there: str
    gone: str


def absences(images: Sequence[GalleryImage]) -> list[Absence]:
    """Those of images 2 k and 2 k + 1, which are twins: one of each.

    Raises:
        ValueError: they are no twins, or have no such captions.
    """
    found = []
    for row, image in enumerate(images):
        twin = images[row ^ 1] if len(images) % 2 == 0 else image
        here = {item.name for item in image.objects}
        caption = next((one for one in image.captions if one.view == "absence"), None)
        gone = next((item.name for item in twin.objects if item.name not in here), None)
        if caption is None or gone is None or image.alike is None or image.alike != twin.alike:
            raise ValueError(f"{image.file} has no twin, or no caption of what is not there")
        there = sorted({with_article(image.objects[item].name) for item in caption.mentions})
        found.append(Absence(caption.text, " and ".join(there), with_article(gone)))
    return found


@torch.inference_mode()
def minus_metrics(
    runtime: Runtime, method: str, images: Views, captions: Sequence[Absence]
) -> dict[str, tuple[float, float]]:
    """For each way of asking, in percent: captions that score their image above the twin, and R@1.

    Args:
        runtime: a loaded pack.
        method: one of its methods.
        images: its views of N_img images, twins side by side.
        captions: one of each image.
    """
    score = runtime.methods[method].score
    sentence, there, gone = (
        score(images, runtime.text_views(list(texts), method)).cpu()
        for texts in zip(*captions, strict=True)
    )
    asked = {"the sentence": sentence}
    asked |= {f"minus {weight:g}": there - weight * gone for weight in WEIGHTS}
    own = torch.arange(len(captions))
    found = {}
    for name, scores in asked.items():  # (N_img, N_txt)
        right, twin = scores[own, own], scores[own ^ 1, own]
        above = (right > twin) + 0.5 * (right == twin)
        first = (scores.argmax(dim=0) == own).double()
        found[name] = (100 * float(above.mean()), 100 * float(first.mean()))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m training.evaluation.minus", description="What a minus is worth."
    )
    parser.add_argument("--pack", type=Path, required=True, help="a pack with a gallery of twins")
    options = parser.parse_args(arguments)
    try:
        gallery = load_gallery(options.pack)
        captions = absences(gallery.images)
        runtime = Runtime.load(options.pack, "cpu")
        data = from_pack(options.pack, gallery.split)
    except (FileNotFoundError, PackError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print("| method | asked as | above its twin, % | R@1 |\n|---|---|---:|---:|")
    for method in runtime.methods:
        features = torch.as_tensor(image_features(runtime, data, method=method))
        images = runtime.image_views(features, method)
        for name, (above, first) in minus_metrics(runtime, method, images, captions).items():
            print(f"| {method} | {name} | {above:.1f} | {first:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
