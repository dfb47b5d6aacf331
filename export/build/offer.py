"""What loading something from the Hub will fetch: asked of the Hub before anything is fetched.

Sizes and licences are those that the Hub states; what it does not state is said to be unknown.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from huggingface_hub.utils import filter_repo_objects

from export.build.released import BERT_FILES, BERT_ID, choose_checkpoint, split_checkpoint
from export.encoders.published import ENCODER_FILES
from export.hub.client import HubError, Repo, Token, inspect_repo
from export.pack.schema import MANIFEST

PACK, CLIP, VSE_INFTY = "pack", "clip", "vse_infty"
KINDS = (PACK, CLIP, VSE_INFTY)
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
        names = list(filter_repo_objects(repo.files, allow_patterns=ENCODER_FILES))
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
