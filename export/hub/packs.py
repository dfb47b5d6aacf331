"""Packs on the Hub: push, pull, list, and a pack by its folder or address.

On the Hub a pack is a model repository with a pack's files, found by the tag that its model card
carries (`export/pack/card.py`). Addresses and tokens are those of `export/hub/client.py`.
"""

import shutil
from contextlib import suppress
from pathlib import Path

from huggingface_hub import CommitOperationAdd, constants, scan_cache_dir

from export.hub.client import (
    HubError,
    NotCachedError,
    Progress,
    RefusedError,
    Repo,
    Token,
    UnreachableError,
    cached_folder,
    cached_instead,
    connect,
    fetch,
    inspect_repo,
    is_hub_id,
    one_sentence,
    parse_hub_id,
    remove_commit,
)
from export.pack import card
from export.pack.gallery import read_gallery
from export.pack.reading import list_files, load_info
from export.pack.schema import (
    CARD,
    FOLDER,
    INDEX,
    MANIFEST,
    MAX_MANIFEST,
    UNKNOWN_LICENCE,
    PackInfo,
    current_name,
    parse_info,
)
from export.pack.validation import MAX_JSON, PackError, read_json
from models import METHODS
from models.files import no_such

Row = tuple[str, str, str, str, str, str]

_MAX_CARD = 10**6  # bytes of README.md, which is left out where it has more
_MAX_LISTED = 100  # packs on the Hub that are looked at
# What visitors of an app that others reach may have fetched of one pack, in bytes.
VISITOR_FILE, VISITOR_GALLERY, VISITOR_TOTAL = 10**9, 5 * 10**8, 2 * 10**9
VISITOR_FILES = 20_000
VISITOR_SPARE = 10**9  # bytes of the disk that stay free


def push(pack: Path, address: str, private: bool = False, token: str | None = None) -> str:
    """Uploads a pack as a model repository, in one commit: nobody can ever pull half of it.

    Args:
        pack: the pack's folder; it is checked first, and only its own files are sent.
        address: the repository and the branch, which are made if there are none.
        private: make a new repository private.
        token: a token that may write.

    Returns:
        The address of the commit.

    Raises:
        FileNotFoundError: a file of the pack is missing.
        PackError: the pack is damaged, or nobody said which licence its weights have.
        HubError: the Hub refused or could not be reached.
    """
    repo_id, branch = parse_hub_id(address)
    info = load_info(pack)
    if info.licence.lower() == UNKNOWN_LICENCE:
        raise PackError(
            f"{pack} does not say which licence its weights have, and the Hub would show that to "
            "everybody; ask their authors, and make the pack again with --licence"
        )
    # upload_folder would miss a file that the pack shares with its neighbour
    files = [CommitOperationAdd(name, info.path(name)) for name in list_files(info)]
    if not (info.folder / CARD).is_file():  # by whose tag it is found
        files.append(CommitOperationAdd(CARD, card.render(info).encode()))
    api, message = connect(token), f"Pack {info.name}"
    with one_sentence(address):
        api.create_repo(repo_id, private=private, exist_ok=True)
        if branch is not None:
            api.create_branch(repo_id, branch=branch, exist_ok=True)
        commit = api.create_commit(repo_id, files, commit_message=message, revision=branch)
    return str(commit.commit_url)


def pull(
    address: str,
    token: Token = None,
    commit: str | None = None,
    visitor: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Downloads a pack into the Hub client's cache; without a connection, finds it there.

    Only when all of it is right, the cache knows it by the name of its branch or tag: a pull that
    fails leaves what was pulled before, and of a pack that is refused nothing is kept.

    Args:
        address: of the pack.
        token: a token that may read.
        commit: what the address must still mean; None for whatever it means.
        visitor: refuse what is more than visitors may have fetched.
        progress: see `export.hub.client.fetch`.

    Returns:
        The pack's folder, which is named by its commit; every size and checksum in it is right.

    Raises:
        UnreachableError: the Hub cannot be asked, and the cache lacks the pack.
        HubError: the Hub refused, or what it holds is not a whole pack.
    """
    try:
        repo = inspect_repo(address, token)
    except UnreachableError as error:
        return cached_instead(address, error, find_cached)
    if commit not in (None, repo.commit):
        raise HubError(f"{address} has changed since it was looked at; look again")
    try:
        _, wanted = read_description(repo, token)
        if visitor:
            _check_limits(wanted)
        fetch(wanted, token, progress)
        load_info(repo.folder)
    except (PackError, RefusedError) as error:
        remove_commit(repo.folder)
        raise RefusedError(f"{address} is refused: {error}; nothing of it is kept") from error
    repo.remember()
    return repo.folder


def read_description(repo: Repo, token: Token = None) -> tuple[PackInfo, Repo]:
    """Fetches pack.json and gallery.json, and compares the sizes that they and the Hub state.

    Returns:
        What pack.json says, and `repo` with the files of the pack only.

    Raises:
        PackError: pack.json is none, or the Hub lacks a file or states another size.
        HubError: there is no pack.json, or the transfer failed.
    """
    if MANIFEST not in repo.files:
        raise HubError(f"{repo.address} is not a pack: it has no {MANIFEST}")
    _fetch_text(repo, MANIFEST, MAX_MANIFEST, token)
    info = parse_info(read_json(repo.folder / MANIFEST, MAX_MANIFEST), repo.folder)
    sizes = {name: file.bytes for name, file in info.files.items()}
    images = []
    if info.gallery is not None:
        _fetch_text(repo, f"{FOLDER}/{INDEX}", MAX_JSON, token)
        images = [
            f"{FOLDER}/{name}" for name in read_gallery(repo.folder / FOLDER, files=False).files
        ]
    for name in (*sizes, *images):
        if name not in repo.files:
            raise PackError(f"it lacks {name}")
        if name in sizes and repo.files[name] not in (None, sizes[name]):
            raise PackError(
                f"{name} has {repo.files[name]:,} bytes on the Hub, but pack.json says "
                f"{sizes[name]:,}"
            )
    names = {MANIFEST, *sizes, *images}
    if CARD in repo.files and (repo.files[CARD] or 0) <= _MAX_CARD:
        names.add(CARD)
    return info, repo.only(sorted(names))


def _fetch_text(repo: Repo, name: str, max_bytes: int, token: Token) -> None:
    if (repo.files.get(name) or 0) > max_bytes:
        raise PackError(
            f"{name} has {repo.files[name]:,} bytes, more than the {max_bytes:,} that are read"
        )
    fetch(repo.only([name]), token, progress=lambda *_: None)


def _check_limits(repo: Repo) -> None:
    """Refuses more than visitors may have fetched."""
    if unknown := next((name for name, size in repo.files.items() if size is None), None):
        raise RefusedError(f"the Hub states no size of {unknown}")
    sizes = {name: size or 0 for name, size in repo.files.items()}
    largest, total = max(sizes, key=lambda name: sizes[name]), sum(sizes.values())
    gallery = sum(size for name, size in sizes.items() if name.startswith(f"{FOLDER}/"))
    for what, value, unit, limit in (
        (largest, sizes[largest], "bytes", VISITOR_FILE),
        ("its gallery", gallery, "bytes", VISITOR_GALLERY),
        ("it", total, "bytes", VISITOR_TOTAL),
        ("it", len(sizes), "files", VISITOR_FILES),
    ):
        if value > limit:
            raise RefusedError(
                f"{what} has {value:,} {unit}, more than the {limit:,} that visitors may have "
                "fetched"
            )
    if shutil.disk_usage(constants.HF_HUB_CACHE).free < total + VISITOR_SPARE:
        raise RefusedError(f"there is no room for its {total:,} bytes on the disk")


def find_cached(address: str) -> Path:
    """The folder of a pack that is whole in the cache; the Hub is not asked.

    Raises:
        NotCachedError: it is not in the cache, or not all.
        PackError: it is damaged.
    """
    try:
        return load_info(cached_folder(address)).folder
    except FileNotFoundError as error:
        sentence = f"{address} is not, or not all, in the local cache; pull it"
        raise NotCachedError(sentence) from error


def resolve(pack: str) -> Path:
    """Finds a pack by what a person typed.

    Args:
        pack: a folder, or a Hub repository as `owner/name` or `owner/name@revision`, which is
            fetched; a folder that exists wins, and the Hub is not asked for `owner/name` where
            there is a folder `owner`.

    Raises:
        FileNotFoundError: it is neither a folder nor looks like a repository.
        HubError: the repository could not be fetched, or is no pack.
    """
    path = Path(pack).expanduser()
    for folder in (path, path.parent / current_name(path.name)):
        if folder.is_dir():
            return folder
    if not is_hub_id(pack) or (path.parent.is_dir() and "@" not in pack):
        advice = "name a pack's folder, or a Hub repository as owner/name or owner/name@revision"
        raise FileNotFoundError(no_such("folder", path, advice))
    return pull(pack)


def list_packs(author: str | None = None, token: Token = None) -> list[Row]:
    """The packs on the Hub.

    Args:
        author: only this owner's.
        token: a token that may read private ones.

    Returns:
        Address, commit, size, licence, methods, and whether the commit is in the cache.

    Raises:
        UnreachableError: the Hub cannot be asked; `cached_packs` is what is left.
        HubError: it refused.
    """
    rows = []
    with one_sentence("the list of packs"):
        for model in connect(token).list_models(filter=card.TAG, author=author, limit=_MAX_LISTED):
            try:
                repo = inspect_repo(model.id, token)
            except UnreachableError:
                raise
            except HubError:  # such as a gated one
                rows.append((model.id, "?", "?", "?", "?", "no"))
                continue
            size = sum(size or 0 for name, size in repo.files.items() if name != ".gitattributes")
            methods = [method for method in METHODS if method in repo.tags]
            row = _row(model.id, repo.commit, size, repo.licence or "?", methods)
            rows.append(row if (repo.folder / MANIFEST).is_file() else (*row[:-1], "no"))
    return rows


def cached_packs(author: str | None = None) -> list[Row]:
    """The whole packs in the Hub client's cache, a row for each commit; see `list_packs`."""
    if not Path(constants.HF_HUB_CACHE).is_dir():
        return []
    rows = []
    for repo in sorted(scan_cache_dir(constants.HF_HUB_CACHE).repos, key=lambda repo: repo.repo_id):
        for commit in repo.revisions if author in (None, repo.repo_id.partition("/")[0]) else ():
            with suppress(ValueError, OSError):  # something else, or not whole
                info = load_info(commit.snapshot_path, verify=False)
                size, methods = commit.size_on_disk, list(info.methods)
                rows.append(_row(repo.repo_id, commit.commit_hash, size, info.licence, methods))
    return rows


def _row(repo_id: str, commit: str, size: int, licence: str, methods: list[str]) -> Row:
    return (repo_id, commit[:8], f"{size / 1e6:.1f} MB", licence, ", ".join(methods) or "?", "yes")
