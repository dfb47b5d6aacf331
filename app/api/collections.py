"""Endpoints for images, collections, packs and recorded results."""

from __future__ import annotations

import io
from pathlib import Path, PurePath

from polyview.app.api import answers
from polyview.app.api import parameters as p
from polyview.app.api.answers import Progress
from polyview.app.packs.description import describe, describe_gallery, mismatch
from polyview.app.packs.description import results as recorded_results
from polyview.app.packs.downloads import PRESETS, Job, converted_pack
from polyview.app.packs.state import AppState
from polyview.app.refusal import Refusal
from polyview.app.search.computations import Computation
from polyview.app.search.retriever import Retriever
from polyview.export.check import check_preprocessing, choose_pairs
from polyview.export.obtain import CLIP

_MAX_DESCRIPTION = 500  # characters of a pack's description
_MEDIA_TYPES = {".mov": "video/quicktime", ".mkv": "video/x-matroska", ".webm": "video/webm"} | {
    f".{kind}": f"image/{kind}" for kind in ("gif", "webp", "png", "apng")
}


def image(retriever: Retriever, image_id: p.ImageId, large: p.Large = False) -> answers.Blob:
    """Returns an image of the collection as a WebP without metadata."""
    if not large:
        data = retriever.thumbnail(image_id).read_bytes()
        return answers.Blob(media_type="image/webp", data=data)
    file = io.BytesIO()
    retriever.image(image_id).decode().save(file, "WEBP", quality=90, method=2)
    return answers.Blob(media_type="image/webp", data=file.getvalue())


def clip(
    state: AppState, image_id: p.ImageId, pack: p.Pack = "", collection: p.Collection = ""
) -> answers.Blob:
    """Returns a clip's file; over HTTP, only the bytes that the `Range` header requests."""
    pack, collection = state.resolve(pack, collection)
    if not state.sends_files(collection):
        raise Refusal(403, "clips of this collection are sent only to its owner's machine")
    retriever = state.retriever(pack, collection)
    try:
        source = retriever.image(image_id)
    except ValueError as error:
        raise Refusal(404, str(error)) from error
    if source.moment is None:
        raise Refusal(404, f"image {image_id} is a still image; request /image/{image_id}")
    with source.require_file().open():  # checks that it is a regular file inside its folder
        media_type = _MEDIA_TYPES.get(PurePath(source.file).suffix.lower(), "video/mp4")
    return answers.Blob(media_type=media_type, file=source.path.resolve())


def images(retriever: Retriever, start: p.Start = 0, count: p.Count = 60) -> answers.Hits:
    """Lists the images of the collection, without duplicates and unreadable files."""
    all_images = retriever.distinct_images()
    hits = [retriever.hit(image.image_id) for image in all_images[start : start + count]]
    return answers.Hits(total=len(all_images), hits=hits)


def info(state: AppState, pack: p.Pack = "", collection: p.Collection = "") -> answers.Info:
    """Describes the pack, its methods, the device, the gallery, and metadata to filter by."""
    retriever = state.retriever(pack, collection)
    return answers.Info(**describe(retriever, state.resolve(pack, collection)[1]))


def health(state: AppState) -> answers.Health:
    """Returns how many images the first collection has, and how many of them are searchable."""
    index, pictures = state.first.index, len(state.first.collection.images)
    return answers.Health(searchable=len(index), pictures=pictures, complete=index.complete)


def results(state: AppState, pack: p.Pack = "") -> answers.Results:
    """Returns the recorded results of a pack: metrics, speed, training runs, ablations."""
    return answers.Results(**recorded_results(state.retriever(pack)))


def check_pack(retriever: Retriever, method: p.Method = "") -> answers.Check:
    """Checks with captioned images whether a pack preprocesses as its model expects."""
    if retriever.reads_sets:
        raise ValueError(f"{retriever.info.title} reads clips; only packs for images are checked")
    method = method.strip() or retriever.methods.best
    retriever.methods.require_single(method)
    key = ("check", method)
    if (computation := retriever.computations.get(key)) is None:  # once: a check takes seconds
        captions = retriever.collection.captions
        pairs = choose_pairs([owner for _, owner in captions])
        images = [retriever.image(image_id).decode() for image_id in pairs]
        texts = [captions[row][0] for row in pairs.values()]
        steps = check_preprocessing(retriever.runtime, method, images, texts)
        check = answers.Check(method=method, pairs=len(pairs), steps=steps)
        computation = retriever.computations.store(key, Computation(check))
    return answers.Check(**dict(computation.result))


def collections(state: AppState) -> answers.Collections:
    """Lists the available collections: images of packs, and opened folders."""
    return answers.Collections(collections=state.collections())


def open_collection(state: AppState, place: p.Place) -> Progress:
    """Opens a folder or ZIP archive of images on the app's machine."""
    return progress(state, "", state.open_collection(place))


def new_collection(state: AppState) -> Progress:
    """Creates a collection for uploads, with a secret key."""
    return progress(state, "", state.new_upload())


def add_file(
    state: AppState, collection: p.Upload, name: p.FileName, content: p.Content
) -> Progress:
    """Adds a file to an upload; `start_collection` reads it."""
    state.uploads.add(collection, name, content)
    return progress(state, "", collection)


def start_collection(state: AppState, collection: p.Upload, pack: p.Pack = "") -> Progress:
    """Starts reading the files uploaded so far; call again after adding files."""
    state.start_upload(collection, pack)
    return progress(state, pack, collection)


def progress(state: AppState, pack: p.Pack = "", collection: p.Collection = "") -> Progress:
    """Returns the progress of indexing a collection, and the skipped files."""
    key, collection = state.resolve(pack, collection)
    if status := state.pending_stage(collection):
        return Progress(collection=collection, pack=key, stage=status[0], pictures=status[1])
    retriever = state.retriever(key, collection)
    return Progress(
        collection=collection,
        pack=key,
        complete=retriever.index.complete,
        mismatch=mismatch(retriever),
        **vars(retriever.index.progress),
        **describe_gallery(retriever),
    )


def stop_reading(state: AppState, pack: p.Pack = "", collection: p.Collection = "") -> Progress:
    """Stops reading a collection; images read so far can be searched."""
    _require_upload_or_owner(state, collection)
    state.stop_opening(collection)
    if state.pending_stage(collection) is None:
        state.retriever(pack, collection).index.stop()
    return progress(state, pack, collection)


def resume_reading(state: AppState, pack: p.Pack = "", collection: p.Collection = "") -> Progress:
    """Resumes reading a collection."""
    _require_upload_or_owner(state, collection)
    state.resume(pack, collection)
    return progress(state, pack, collection)


def _require_upload_or_owner(state: AppState, collection: str) -> None:
    """Raises `Refusal` if a visitor of a public app names a collection other than an upload."""
    if not collection.startswith("upload-"):
        state.refuse_public("only the app's owner can stop or resume reading; upload your files")


def packs(state: AppState) -> answers.Packs:
    """Lists the packs on this machine, and those that can be downloaded by name."""
    packs = [
        {
            "key": key,
            "title": info.title,
            "description": info.description[:_MAX_DESCRIPTION],
            "licence": info.licence,
            "bytes": sum(file.bytes for file in info.files.values()),
            "methods": list(info.methods),
            "own_images": info.gallery is not None,
            "open": key in state.runtimes,
        }
        for key, info in state.packs().items()
    ]
    offers = [
        {
            "name": name,
            "title": preset["title"],
            "about": preset["about"],
            "facts": "about {megabytes} MB once, {licence} licence, {time}".format_map(preset),
            "installed": converted_pack(state.cache, CLIP, name) is not None,
        }
        for name, preset in (PRESETS.items() if state.private else ())
    ]
    accepts, private = state.downloads.allowed_addresses, state.private
    return answers.Packs(packs=packs, offers=offers, accepts=accepts, private=private)


def look_pack(state: AppState, address: p.Address, kind: p.Kind = "pack") -> answers.Look:
    """Describes the files that a download would fetch; adds a pack that needs no download."""
    offer = state.downloads.find(address, kind)
    if isinstance(offer, Path):
        key = state.add_pack(offer)
        return answers.Look(pack=key, missing_bytes=0, unknown_sizes=0, parts=[])
    repo = offer.repo
    repository = {
        "repository": repo.repo_id,
        "commit": repo.commit,
        "licence": repo.licence,
        "files": len(repo.files),
        "bytes": repo.missing_bytes,
    }
    unknown_sizes = sum(size is None for size in repo.missing_files.values())
    sizes = {"missing_bytes": repo.missing_bytes, "unknown_sizes": unknown_sizes}
    return answers.Look(pack="", parts=[repository], **sizes)


def fetch_pack(state: AppState, address: p.Address, kind: p.Kind = "pack") -> Job:
    """Starts downloading a pack in the background; one download runs at a time."""
    return state.downloads.start(address, kind)


def pack_job(state: AppState, job: p.Job) -> Job:
    """Returns the state of a download; after a finished download, `pack` is the new pack's key."""
    return state.downloads.get(job)


def cancel_pack(state: AppState, job: p.Job) -> Job:
    """Cancels a download and removes incomplete files."""
    return state.downloads.cancel(job)
