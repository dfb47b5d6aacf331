"""Checkpoints on the Hub: `owner/name/FOLDER_OR_FILE[@REVISION]`."""

from collections.abc import Iterable
from pathlib import Path

from export.hub.client import HubError, fetch

_SUFFIXES = (".pth", ".pth.tar", ".pt", ".ckpt", ".tar", ".bin")
BERT_ID = "google-bert/bert-base-uncased"  # the word pieces of VSE-infinity and AVSE
BERT_FILES = ("config.json", "tokenizer.json", "vocab.txt")
_BEST = "model_best"  # what every release calls the checkpoint of its best epoch


def fetch_checkpoint(address: str) -> tuple[Path, str]:
    """Downloads a checkpoint, or finds it in the Hub client's cache.

    Args:
        address: a repository and the file in it, or a folder that holds one.

    Returns:
        The file, and where it is from: repository, path and commit.

    Raises:
        HubError: the address names no repository, or no checkpoint in it.
        HubError: the Hub refused or could not be reached.
    """
    repo_id, inside, revision = parse_address(address)

    def choose(files: Iterable[str]) -> list[str]:
        return [choose_checkpoint(files, repo_id, inside)]

    folder = fetch(repo_id, revision, choose)
    name = choose_checkpoint(
        [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()],
        repo_id,
        inside,
    )
    return folder / name, f"{repo_id}/{name}@{folder.name}"


def parse_address(address: str) -> tuple[str, str, str | None]:
    """The repository, the path in it ("" for all of it) and the revision that an address names.

    Raises:
        HubError: it names no repository.
    """
    place, _, revision = address.partition("@")
    parts = [part for part in place.split("/") if part]
    if len(parts) < 2 or ".." in parts:
        raise HubError(
            f"--hub takes owner/name/FOLDER_OR_FILE, such as cccjc/vse-infty/f30k_wsl_grid_bert, "
            f'not "{address}"'
        )
    return "/".join(parts[:2]), "/".join(parts[2:]), revision or None


def choose_checkpoint(names: Iterable[str], repo_id: str, inside: str) -> str:
    """The one checkpoint that a file or folder of a repository means.

    Raises:
        HubError: there is none, or there are several.
    """
    files = list(names)
    if inside in files:
        return inside
    held = [name for name in files if name.endswith(_SUFFIXES)]
    under = [name for name in held if not inside or name.startswith(f"{inside}/")]
    best = [name for name in under if Path(name).name.startswith(_BEST)] or under
    if len(best) == 1:
        return best[0]
    if best:
        raise HubError(
            f"there are several checkpoints under {inside or repo_id}; name one of "
            f"{', '.join(sorted(best))}"
        )
    known = ", ".join(sorted(held)) or "none"
    raise HubError(f"there is no checkpoint under {inside or repo_id}; there is {known}")
