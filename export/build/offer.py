"""What loading something from the Hub will fetch: asked of the Hub before anything is fetched.

Sizes and licences are those that the Hub states; what it does not state is said to be unknown.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from export.encoders.published import encoder_files
from export.hub.client import HubError, Repo, Token, fetch_chosen, inspect_repo, is_hub_id
from export.pack.schema import MANIFEST

PACK, CLIP, VSE_INFTY = "pack", "clip", "vse_infty"
KINDS = (PACK, CLIP, VSE_INFTY)
BERT_ID = "google-bert/bert-base-uncased"  # the word pieces of VSE-infinity and AVSE
BERT_FILES = ("config.json", "tokenizer.json", "vocab.txt")
_CHECKPOINTS = (".pth", ".pth.tar", ".pt", ".ckpt", ".tar", ".bin")
_BEST = "model_best"  # what every release calls the checkpoint of its best epoch
_NOT_PACK = (".gitattributes", ".gitignore")


class NoWeightsError(HubError):
    """A repository holds no weights in a format that is read."""


@dataclass(frozen=True)
class Offer:
    """What loading one address will fetch.

    Attributes:
        kind: one of `KINDS`.
        address: as it was named.
        parts: the files of a repository each; the first is the one that the address names.
    """

    kind: str
    address: str
    parts: Sequence[Repo]

    @property
    def missing_bytes(self) -> int:
        """How much is to be fetched, as far as the Hub states it."""
        return sum(size or 0 for part in self.parts for size in part.missing.values())

    @property
    def unknown(self) -> int:
        """Of how many files to fetch the Hub states no size."""
        return sum(size is None for part in self.parts for size in part.missing.values())

    @property
    def at_most(self) -> bool:
        """Whether less may be fetched: which files belong to a pack is in its pack.json."""
        return self.kind == PACK


def look(kind: str, address: str, token: Token = None) -> Offer:
    """Asks the Hub what it holds; nothing is fetched.

    Args:
        kind: PACK for a pack, CLIP for weights of CLIP, VSE_INFTY for the authors' weights.
        address: `owner/name[@revision]`; of VSE_INFTY `owner/name/FOLDER_OR_FILE[@revision]`.
        token: see `export.hub.client`.

    Raises:
        ValueError: the address names no repository, or nothing of this kind in it.
        UnreachableError: the Hub cannot be asked.
        HubError: it refused.
    """
    if kind == VSE_INFTY:
        place, inside = split_checkpoint(address)
        repo = inspect_repo(place, token)
        pieces = inspect_repo(BERT_ID, token)
        weights = repo.only([choose_checkpoint(repo.files, inside)])
        return Offer(kind, address, [weights, pieces.only(pieces.files.keys() & set(BERT_FILES))])
    repo = inspect_repo(address, token)
    if kind == CLIP:
        names = encoder_files(repo.files)
        if not any(name.endswith(".safetensors") for name in names):
            raise NoWeightsError(
                f"{address} holds no weights as safetensors, and no others are read; name a "
                f"revision that does, such as {repo.repo_id}@refs/pr/1, or another CLIP"
            )
    elif MANIFEST not in repo.files:
        raise HubError(f"{address} is not a pack: it has no {MANIFEST}")
    else:
        names = [name for name in repo.files if name not in _NOT_PACK]
    return Offer(kind, address, [repo.only(names)])


def fetch_checkpoint(address: str) -> tuple[Path, str]:
    """Downloads an authors' checkpoint, or finds it in the Hub client's cache.

    Args:
        address: `owner/name/FILE[@REVISION]`, or a folder that holds one.

    Returns:
        The file, and where it is from: repository, path and commit.

    Raises:
        HubError: the address names no checkpoint, or the Hub refused or could not be reached.
    """
    place, inside = split_checkpoint(address)
    folder = fetch_chosen(place, lambda names: [choose_checkpoint(names, inside)])
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    name = choose_checkpoint(files, inside)
    return folder / name, f"{place.partition('@')[0]}/{name}@{folder.name}"


def split_checkpoint(address: str) -> tuple[str, str]:
    """The repository `owner/name[@revision]`, and the path in it ("" for all of it).

    Raises:
        HubError: the address names no repository.

    >>> split_checkpoint("cccjc/vse-infty/f30k/best.pth@v1")
    ('cccjc/vse-infty@v1', 'f30k/best.pth')
    """
    path, at, revision = address.partition("@")
    parts = [part for part in path.split("/") if part]
    place = "/".join(parts[:2]) + at + revision
    if not is_hub_id(place):
        raise HubError(
            "--hub takes owner/name/FOLDER_OR_FILE, such as cccjc/vse-infty/f30k_wsl_grid_bert, "
            f'not "{address}"'
        )
    return place, "/".join(parts[2:])


def choose_checkpoint(names: Iterable[str], inside: str) -> str:
    """The one checkpoint that a file or folder of a repository means.

    Raises:
        HubError: there is none, or there are several.
    """
    checkpoints = sorted(name for name in names if name.endswith(_CHECKPOINTS))
    folder = inside and f"{inside}/"
    below = [name for name in checkpoints if name == inside or name.startswith(folder)]
    best = [name for name in below if Path(name).name.startswith(_BEST)] or below
    if len(best) != 1:
        raise HubError(
            f"there are {len(best) or 'no'} checkpoints under {inside or 'the whole repository'}; "
            f"name one of {', '.join(best or checkpoints) or 'another repository'}"
        )
    return best[0]
