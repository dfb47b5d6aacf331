"""What a Space installs: requirements.txt as that machine and its hardware need it."""

import re
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

ZEROGPU = "zero-a10g"  # the Hub's name for it, whatever GPU it lends today
PYTHON = "3.12"
# Requirements of other machines are left out: every Space is one of these.
MACHINE = {"sys_platform": "linux", "platform_machine": "x86_64", "python_version": PYTHON}
NEWEST_ON_ZEROGPU = "<2.12"  # of torch; ZeroGPU starts no newer one


def adapt(text: str, hardware: str, gradio: str, index: str | None = None) -> str:
    """Rewrites requirements for a Space.

    A machine without a GPU of its own, ZeroGPU among them, gets onnxruntime for CPUs, which is a
    tenth of the size; the two builds must not lie side by side.

    Args:
        text: of requirements.txt.
        hardware: the Hub's name of the machine, such as "cpu-basic".
        gradio: the version that the front matter names, which the Hub installs.
        index: the address of an extra package index, such as one with CPU builds of torch.

    Returns:
        One requirement a line, without markers.

    Raises:
        ValueError: a line is no requirement, gradio's version does not fit, or the index is none.
    """
    lines = [f"# For a Space on {hardware}: Linux, Python {PYTHON}."]
    if index is not None:
        lines.append(f"--extra-index-url {_checked(index)}")
    for wanted in _parse(text):
        if wanted.name == "gradio" and gradio not in wanted.specifier:
            raise ValueError(
                f"the README's front matter says sdk_version {gradio}, but requirements.txt wants "
                f"{wanted}; make them agree"
            )
        if wanted.name.startswith("onnxruntime"):
            wanted.name = "onnxruntime-gpu" if has_gpu(hardware) else "onnxruntime"
        if wanted.name == "torch" and hardware == ZEROGPU:
            wanted.specifier &= NEWEST_ON_ZEROGPU
        lines.append(str(wanted))
    if hardware == ZEROGPU:
        lines.append("spaces")
    return "\n".join(lines) + "\n"


def has_gpu(hardware: str) -> bool:
    """Whether a machine has a GPU all the time; ZeroGPU lends one for single calls only."""
    return not hardware.startswith("cpu-") and hardware != ZEROGPU


def _parse(text: str) -> list[Requirement]:
    found = []
    for line in text.splitlines():
        bare = re.sub(r"(^|\s)#.*", "", line).strip()
        if not bare:
            continue
        try:
            wanted = Requirement(bare)
        except InvalidRequirement as error:
            raise ValueError(f'requirements.txt: "{bare}" is no requirement: {error}') from error
        if wanted.marker is None or wanted.marker.evaluate(dict(MACHINE)):
            wanted.marker, wanted.name = None, canonicalize_name(wanted.name)
            found.append(wanted)
    return found


def _checked(index: str) -> str:
    """The index, where it is an address that everybody may read."""
    if not re.fullmatch(r"https?://[^\s@]+", index):
        raise ValueError(
            f'--torch-index "{index}" is no address of a package index; give one that begins with '
            "https:// and holds no password, which everybody could read in the Space"
        )
    return index


def read(path: Path) -> str:
    """The text of requirements.txt.

    Raises:
        FileNotFoundError: it is missing.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; a Space is made from the whole repository")
    return path.read_text("utf-8")
