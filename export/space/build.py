"""The folder of a Space: the app, its packs, what it installs and what the Hub reads about it.

README.md            front matter for the Hub, then a page for people
requirements.txt     for that machine and its hardware, see `export/space/requirements.py`
app/ models/ export/ the code; nothing of training, tests or benchmarks
app/bundled/         the packs that were asked for, and what lies beside them
start.py             only where the app is to start on another pack than `scenes`
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import SpaceCardData, SpaceHardware, metadata_load

from export.pack.reading import list_files, load_info
from export.pack.schema import PackInfo, current_name
from export.space import requirements
from export.space.preload import HubPack, look_up
from models.files import replacing_folder

ROOT = Path(__file__).resolve().parents[2]
CODE = ("app", "models", "export")
BUNDLED = Path("app") / "bundled"
FIRST = "scenes"  # the pack that the app starts on by itself
HARDWARE = tuple(str(kind.value) for kind in SpaceHardware)
LONGEST_TITLE = 80  # characters

_STARTER = '''"""Starts Polyview; the Space's variable POLYVIEW_PACK names another pack."""

import os
import sys

os.environ.setdefault("POLYVIEW_PACK", "{pack}")

from app.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
'''


@dataclass(frozen=True)
class Plan:
    """What kind of Space it is to be.

    Attributes:
        packs: bundled names or folders; the Space starts on the first, unless `hub` names one.
        hub: a pack on the Hub, `owner/name[@revision]`, to start on; fetched as the Space is built.
        hardware: the Hub's name of a machine.
        title: what the Hub calls the Space; None for the app's name.
        torch_index: the address of an extra package index, such as one with CPU builds of torch.
    """

    packs: Sequence[str] = (FIRST,)
    hub: str | None = None
    hardware: str = "cpu-basic"
    title: str | None = None
    torch_index: str | None = None

    def __post_init__(self) -> None:
        """Refuses what cannot work, in a sentence."""
        if not self.packs and self.hub is None:
            raise ValueError("a Space without a pack has nothing to search; name one")
        if self.hardware not in HARDWARE:
            raise ValueError(
                f'--hardware "{self.hardware}" is unknown; choose one of {", ".join(HARDWARE)}'
            )
        title = self.title
        if title is not None and not (title.isprintable() and title.strip()):
            raise ValueError(f"--title {title!r} is no line of text; give some words")
        if title is not None and len(title) > LONGEST_TITLE:
            raise ValueError(
                f"--title has {len(title)} characters; give at most {LONGEST_TITLE} of them"
            )


@dataclass(frozen=True)
class Space:
    """What was built.

    Attributes:
        folder: where it is.
        files: how many files are in it.
        bytes: of all of them.
        preloaded: the pack that the Hub adds, or None.
    """

    folder: Path
    files: int
    bytes: int
    preloaded: HubPack | None


def build_space(out: Path, plan: Plan, root: Path = ROOT) -> Space:
    """Builds the folder beside its target, and moves it into place whole.

    Args:
        out: the folder to make; an empty one is taken.
        plan: see `Plan`.
        root: the repository.

    Raises:
        FileExistsError: there is something at `out`.
        FileNotFoundError: a pack, or a file of the repository, is missing.
        ValueError: a pack is damaged or cannot be searched, or the requirements do not fit.
        HubError: the pack on the Hub could not be looked up.
    """
    out = out.expanduser().absolute()
    _refuse_place(out, root)
    packs = [_find_pack(name, root) for name in plan.packs]
    _refuse_packs(packs, plan)
    preloaded = look_up(plan.hub) if plan.hub is not None else None
    front = _read_front(root)
    needs = requirements.adapt(
        requirements.read(root / "requirements.txt"),
        plan.hardware,
        str(front.get("sdk_version", "")),
        plan.torch_index,
    )
    with replacing_folder(out) as work:
        for origin, name in _files(root, packs):
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(origin, work / name)
        first = preloaded.address if preloaded else packs[0].name
        starter = "app/main.py" if first == FIRST else "start.py"
        if starter == "start.py":
            (work / starter).write_text(_STARTER.format(pack=first), "utf-8")
        about = _front_matter(front, plan, starter, preloaded)
        page = _page(str(about["title"]), packs, preloaded)
        yaml = SpaceCardData(**about).to_yaml()
        (work / "README.md").write_text(f"---\n{yaml}\n---\n\n{page}", "utf-8")
        (work / "requirements.txt").write_text(needs, "utf-8")
        sizes = [path.stat().st_size for path in work.rglob("*") if path.is_file()]
    return Space(out, len(sizes), sum(sizes), preloaded)


def _refuse_place(out: Path, root: Path) -> None:
    for name in CODE:
        if out.resolve().is_relative_to((root / name).resolve()):
            raise ValueError(f"{out} lies in {name}/, which is copied; choose a folder outside it")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise FileExistsError(f"{out} is no folder; choose another place for the Space")
    if out.is_dir() and any(out.iterdir()):
        raise FileExistsError(f"{out} is not empty; choose another folder, or empty this one")


def _find_pack(name: str, root: Path) -> PackInfo:
    """A pack by its bundled name or its folder, checked."""
    bundled = root / BUNDLED
    plain, folder = name.replace("_", "").isalnum(), bundled / current_name(name)
    if plain and (folder / "pack.json").is_file():
        return load_info(folder)
    if not Path(name).is_dir():
        known = ", ".join(sorted(path.parent.name for path in bundled.glob("*/pack.json")))
        raise FileNotFoundError(
            f'there is no pack "{name[:200]}"; name a bundled one ({known}) or the folder of one'
        )
    return load_info(Path(name))


def _refuse_packs(packs: Sequence[PackInfo], plan: Plan) -> None:
    names = [info.name for info in packs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f'two packs are called "{twice[0]}"; name each once')
    if plan.hub is None and packs[0].gallery is None:
        raise ValueError(
            f'the pack "{names[0]}" comes without pictures, so that a Space could not start on it; '
            f"name one with a gallery first, such as --pack {FIRST} --pack {names[0]}"
        )


def _files(root: Path, packs: Sequence[PackInfo]) -> Iterator[tuple[Path, Path]]:
    """Every file to copy and its place in the Space."""
    yield root / "LICENSE", Path("LICENSE")
    for folder in CODE:
        for path in sorted((root / folder).rglob("*")):
            place = path.relative_to(root)
            if path.is_file() and not place.is_relative_to(BUNDLED) and not _leftover(place):
                yield path, place
    for info in packs:
        for name in list_files(info):
            yield info.path(name), BUNDLED / info.name / name
        if info.folder.parent == root / BUNDLED:  # what was measured and computed ahead for it
            beside = [*info.folder.parent.glob(f"{info.folder.name}.*")]
            beside += (info.folder.parent / "ablations" / info.folder.name).glob("*.json")
            for path in sorted(beside):
                yield path, path.relative_to(root)


def _leftover(place: Path) -> bool:
    """Whether a file only came to be by running the code, or by editing it."""
    hidden = any(part.startswith(".") or part == "__pycache__" for part in place.parts)
    return hidden or place.suffix in {".pyc", ".partial", ".orig", ".rej"} or place.name[-1] == "~"


def _read_front(root: Path) -> dict[str, Any]:
    readme = root / "README.md"
    front = metadata_load(readme) if readme.is_file() else None
    if not front or "sdk_version" not in front:
        raise FileNotFoundError(
            f"{readme} has no front matter with sdk_version, which a Space needs; take the whole "
            "repository"
        )
    return front


def _front_matter(
    front: dict[str, Any], plan: Plan, starter: str, preloaded: HubPack | None
) -> dict[str, Any]:
    """What the Hub reads, from what the repository's own README says."""
    about = {
        **front,
        "title": plan.title or front.get("title", "Polyview"),
        "python_version": requirements.PYTHON,
        "app_file": starter,
        "suggested_hardware": plan.hardware,
    }
    if preloaded is not None:
        about |= {"models": [preloaded.repo_id], "preload_from_hub": [preloaded.line]}
    return about


def _page(title: str, packs: Sequence[PackInfo], preloaded: HubPack | None) -> str:
    """What people read about the Space."""
    lines = [f"- **{p.title}** (`{p.name}`): {p.licence}. {p.credits}." for p in packs]
    if preloaded is not None:
        address = f"`{preloaded.address}`"
        about = f"{preloaded.licence}. {preloaded.credits}."
        lines.insert(0, f"- **{preloaded.title}** ({address}): {about}")
    listed = "\n".join(lines)
    return f"""# {title}

Type a sentence, get pictures, and look at what each view saw: methods from the research on
visual-semantic embeddings, side by side, with a map for every hit of where in the picture its score
comes from. Made with Polyview. The code is under the Apache License 2.0.

## Packs

{listed}

The Space starts on the first one. Its variable `POLYVIEW_PACK` names another: one of these, or a
pack on the Hub as `owner/name@revision`.
"""
