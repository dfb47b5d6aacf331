"""Sources of encoders that recipes expect on this machine, and how they get there.

`runs/backbone` could also be a Hub id. It is none: where the folder is missing, the answer is the
command that makes it, and nobody is asked on the network.
"""

from pathlib import Path

OWN = ("runs", "data")  # folders in which trainings and fetched encoders lie
_MADE = {
    "runs/backbone": "training.pretrain --recipe scenes/backbone",
    "runs/photo_backbone": "training.distill --recipe flickr8k/backbone",
    "runs/photos_backbone_first": "training.distill --recipe photos/backbone_first",
    "runs/photos_backbone": "training.distill --recipe photos/backbone",
}


def refuse_missing(source: str | Path, setting: str) -> None:
    """Refuses a source that names a folder below `runs/` or `data/` which is not there.

    Args:
        source: as a recipe names it, see `export/hub/sources.py`.
        setting: that it is the value of.

    Raises:
        FileNotFoundError: with the command that makes the folder, where one does.
    """
    name = str(source).partition("#")[0]
    if Path(name).parts[:1] not in [(part,) for part in OWN] or Path(name).is_dir():
        return
    if name in _MADE:
        how = f"make it with python -m {_MADE[name]} --out {name}, or name another one"
    else:
        how = "see docs/photographs.md, or name a run, a Hugging Face folder or a Hub id"
    raise FileNotFoundError(f"there is no folder {name}; {how} with --set {setting}=...")
