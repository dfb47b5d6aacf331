"""Builds the folder of a Hugging Face Space: `python -m polyview space --out DIR`.

The folder has the code except `training`, the chosen packs and their recorded results, README.md,
requirements.txt for the hardware, and start.py if the first pack is not `scenes`.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import SpaceCardData, SpaceHardware, metadata_load

from polyview.export.pack.reading import list_files, load_info
from polyview.export.pack.schema import MANIFEST, PackInfo
from polyview.models.files import replacing_folder

ROOT = Path(__file__).resolve().parents[1]
CODE = ("polyview", "app", "models", "export")
BUNDLED = Path("app") / "bundled"
SCENES = "scenes"  # the pack with which the app starts by default
ZEROGPU = "zero-a10g"  # the Hub's name for ZeroGPU with any GPU
HARDWARE = tuple(str(kind.value) for kind in SpaceHardware)
_IGNORED = (".*", "__pycache__", "*.pyc", "*.partial", "*.orig", "*.rej", "*~", "bundled")
_STARTER = '''"""Starts Polyview; the Space's variable POLYVIEW_PACK names another pack."""

import os
import sys

os.environ.setdefault("POLYVIEW_PACK", "{pack}")

from polyview.app.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
'''


def build_space(
    out: Path,
    packs: Sequence[str] = (SCENES,),
    hardware: str = "cpu-basic",
    torch_index: str | None = None,
    root: Path = ROOT,
) -> Path:
    """Builds a Space in the new or empty folder `out`, atomically; returns the folder.

    `packs` are names of bundled packs, or folders; the app starts with the first pack. `hardware`
    is one of `HARDWARE`; `root` is the folder of the code. `torch_index` is an extra package index,
    such as one with CPU builds of torch. Raises FileExistsError if `out` is not an empty folder,
    FileNotFoundError if a pack is missing, ValueError if a pack is damaged or named twice, or the
    first pack has no gallery.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise FileExistsError(f"{out} is not an empty folder; choose another folder for the Space")
    infos = [_find_pack(name, root / BUNDLED) for name in packs]
    names = [info.name for info in infos]
    first = names[0]
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise ValueError(f'two packs are called "{duplicates[0]}"; name each once')
    if infos[0].gallery is None:
        advice = f"name one with a gallery before it: --pack {SCENES} --pack {first}"
        raise ValueError(f'the pack "{first}" has no images; {advice}')
    card: dict[str, Any] = metadata_load(root / "README.md") or {}
    card["suggested_hardware"] = hardware
    if first != SCENES:
        card["app_file"] = "start.py"
    lines = (f"- **{p.title}** (`{p.name}`): {p.licence}. {p.credits}." for p in infos)
    readme = Path(__file__).with_suffix(".md").read_text("utf-8")
    yaml = SpaceCardData(**card).to_yaml()
    with replacing_folder(out.expanduser().absolute()) as draft:
        for name in CODE:
            shutil.copytree(root / name, draft / name, ignore=shutil.ignore_patterns(*_IGNORED))
        for info in infos:
            _copy_pack(info, draft / BUNDLED, root / BUNDLED)
        shutil.copyfile(root / "LICENSE", draft / "LICENSE")
        requirements = (root / "requirements.txt").read_text("utf-8")
        texts = {
            "README.md": readme.format(front=yaml, title=card["title"], packs="\n".join(lines)),
            "requirements.txt": _requirements(requirements, hardware, torch_index),
        } | ({"start.py": _STARTER.format(pack=first)} if first != SCENES else {})
        for name, text in texts.items():
            (draft / name).write_text(text, "utf-8")
    return out


def _find_pack(name: str, bundled: Path) -> PackInfo:
    """Reads the bundled pack `name`, or else the pack in the folder `name`."""
    if name == Path(name).name and (bundled / name / MANIFEST).is_file():
        return load_info(bundled / name)
    if not Path(name).is_dir():
        names = ", ".join(sorted(path.parent.name for path in bundled.glob(f"*/{MANIFEST}")))
        advice = f"name a bundled pack ({names}) or a pack's folder"
        raise FileNotFoundError(f'there is no pack "{name[:200]}"; {advice}')
    return load_info(Path(name))


def _copy_pack(info: PackInfo, target: Path, bundled: Path) -> None:
    """Copies a pack, and for a bundled pack also its precomputed views and recorded results."""
    files = {target / info.name / name: info.folder / name for name in list_files(info)}
    if info.folder.parent == bundled:
        for pattern in (f"{info.name}.*", f"ablations/{info.name}/*.json"):
            files |= {target / path.relative_to(bundled): path for path in bundled.glob(pattern)}
    for copy, path in files.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def _requirements(text: str, hardware: str, torch_index: str | None) -> str:
    """Adapts requirements.txt to the hardware of a Space, and keeps the platform markers."""
    # onnxruntime for CPUs is a tenth of the size of onnxruntime-gpu
    if hardware.startswith("cpu-") or hardware == ZEROGPU:
        text = text.replace("\nonnxruntime-gpu>=", "\nonnxruntime>=")
    if hardware == ZEROGPU:  # ZeroGPU does not start with a newer torch
        text = text.replace("\ntorch>=", "\ntorch<2.12,>=") + "spaces\n"
    return text if torch_index is None else f"--extra-index-url {torch_index}\n{text}"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m polyview space", description="Build a Space.")
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of the Space")
    add("--pack", action="append", help=f"a bundled pack or a pack's folder (default: {SCENES})")
    add("--hardware", choices=("zero-gpu", *HARDWARE), default="cpu-basic", help="type of machine")
    add("--torch-index", metavar="URL", help="an extra package index, such as one of CPU builds")
    options = parser.parse_args(argv)
    hardware = ZEROGPU if options.hardware == "zero-gpu" else options.hardware
    try:
        out = build_space(options.out, options.pack or [SCENES], hardware, options.torch_index)
    except (ValueError, OSError) as error:
        print(f"no Space was made: {error}", file=sys.stderr)
        return 1
    sizes = [path.stat().st_size for path in out.rglob("*") if path.is_file()]
    print(
        f"{out}: {len(sizes)} files, {sum(sizes) / 1e6:.1f} MB, for {hardware}\n"
        "next, logged in with `hf auth login`:\n"
        f"  hf repos create YOU/SPACE --type space --sdk gradio --flavor {hardware} --exist-ok\n"
        f"  hf upload YOU/SPACE {out} --type space"
    )
    return 0
