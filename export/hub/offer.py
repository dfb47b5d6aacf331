"""What loading something from the Hub will fetch: asked of the Hub before anything is fetched.

Sizes and licences are those that the Hub states; what it does not state is said to be unknown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from huggingface_hub import HfApi, ModelInfo

from export.hub.address import parse_hub_id
from export.hub.checkpoints import BERT_FILES, BERT_ID, choose_checkpoint, parse_address
from export.hub.client import HubError, is_cached, look_at
from export.hub.published import wanted_files
from export.pack.schema import MANIFEST

PACK, CLIP, VSE_INFTY = "pack", "clip", "vse_infty"
KINDS = (PACK, CLIP, VSE_INFTY)
_LONGEST = 200  # characters of a licence
# of the repository, but of no use to a pack
NOT_PACK = (".gitattributes", ".gitignore")


class NoWeightsError(HubError):
    """A repository holds no weights in a format that is read."""


@dataclass(frozen=True)
class Part:
    """What is fetched of one repository.

    Attributes:
        repo_id: `owner/name`.
        revision: the branch, tag or commit that was named, or None.
        commit: what the Hub holds under it now.
        licence: as the repository's card states it, or None where it states none.
        files: the bytes of each file; None where the Hub states no size.
        here: those files that lie in the Hub client's cache already.
    """

    repo_id: str
    revision: str | None
    commit: str
    licence: str | None
    files: Mapping[str, int | None]
    here: frozenset[str] = field(default_factory=frozenset)

    @property
    def missing(self) -> dict[str, int | None]:
        """The files that are not here yet, with their bytes."""
        return {name: size for name, size in self.files.items() if name not in self.here}


@dataclass(frozen=True)
class Offer:
    """What loading one address will fetch.

    Attributes:
        kind: one of `KINDS`.
        address: as it was named.
        parts: a repository each; the first is the one that the address names.
    """

    kind: str
    address: str
    parts: Sequence[Part]

    @property
    def missing_bytes(self) -> int:
        """How much is to be fetched, as far as the Hub states it."""
        return sum(size or 0 for part in self.parts for size in part.missing.values())

    @property
    def known_bytes(self) -> int:
        """How much it is with what is here already, as far as the Hub states it."""
        return sum(size or 0 for part in self.parts for size in part.files.values())

    @property
    def unknown(self) -> int:
        """Of how many files to fetch the Hub states no size."""
        return sum(size is None for part in self.parts for size in part.missing.values())

    @property
    def at_most(self) -> bool:
        """Whether less may be fetched: which files belong to a pack is in its pack.json."""
        return self.kind == PACK


def look(kind: str, address: str, api: HfApi | None = None) -> Offer:
    """Asks the Hub what it holds; nothing is fetched.

    Args:
        kind: PACK for a pack, CLIP for weights of CLIP, VSE_INFTY for the authors' weights.
        address: `owner/name[@revision]`; of VSE_INFTY `owner/name/FOLDER_OR_FILE[@revision]`.
        api: the client to ask with, such as one without a token.

    Raises:
        ValueError: the address names no repository, or nothing of this kind in it.
        UnreachableError: the Hub cannot be asked.
        HubError: it refused.
    """
    if kind == VSE_INFTY:
        repo_id, inside, revision = parse_address(address)
        found = look_at(repo_id, revision, api, sizes=True)
        weights = _part(
            repo_id, revision, found, [choose_checkpoint(_sizes(found), repo_id, inside)]
        )
        pieces = look_at(BERT_ID, None, api, sizes=True)
        names = [name for name in _sizes(pieces) if name in BERT_FILES]
        return Offer(kind, address, [weights, _part(BERT_ID, None, pieces, names)])
    repo_id, revision = parse_hub_id(address)
    found = look_at(repo_id, revision, api, sizes=True)
    names = list(_sizes(found))
    if kind == CLIP:
        names = wanted_files(names)
        if not any(name.endswith(".safetensors") for name in names):
            raise NoWeightsError(
                f"{address} holds no weights as safetensors, and no others are read; name a "
                f"revision that does, such as {repo_id}@refs/pr/1, or another CLIP"
            )
    elif MANIFEST not in names:
        raise HubError(f"{address} is not a pack: it has no {MANIFEST}")
    else:
        names = [name for name in names if name not in NOT_PACK]
    return Offer(kind, address, [_part(repo_id, revision, found, names)])


def _sizes(found: ModelInfo) -> dict[str, int | None]:
    return {file.rfilename: file.size for file in found.siblings or []}


def _part(repo_id: str, revision: str | None, found: ModelInfo, names: Sequence[str]) -> Part:
    commit, sizes = str(found.sha), _sizes(found)
    here = frozenset(name for name in names if is_cached(repo_id, name, commit))
    files = {name: sizes[name] for name in names}
    return Part(repo_id, revision, commit, licence_of(found), files, here)


def licence_of(found: ModelInfo) -> str | None:
    """What the repository's card says; the name of the licence where it is none of the known."""
    card = found.card_data
    licence = card.get("license_name") or card.get("license") if card else None
    if isinstance(licence, list):
        licence = ", ".join(str(item) for item in licence)
    return str(licence)[:_LONGEST] if licence else None
