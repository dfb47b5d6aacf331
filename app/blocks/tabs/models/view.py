"""What the Models tab's templates get: the pack, its methods, and what the Hub would send."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from app.blocks.tabs.fetching import megabytes
from app.blocks.tabs.html import line, percent, render
from app.packs.description import shown_command
from export.build.offer import VSE_INFTY, Offer
from export.hub.client import Repo
from export.pack.schema import PackInfo

_DIRECTIONS = {"i2t_": "picture to text", "t2i_": "text to picture"}
_METRICS = {
    "r1": "R@1",
    "r5": "R@5",
    "r10": "R@10",
    "medr": "median rank",
    "nmr": "median rank, of the gallery",
    "meanr": "mean rank",
    "rprecision": "R-precision",
    "map_at_r": "mAP@R",
}
_OF_BOTH = {
    "rsum": ("rsum", ""),
    "pointing": ("the winning view points at a mentioned object for", " % of captions"),
    "pointing_chance": ("by chance for", " %"),
    "view_cosine": ("mean cosine between the views of a picture", ""),
}
_MOST = 200  # files of a repository that are listed
_BECOMES = {
    "pack": "It is a pack already, and is kept in the Hub client's cache.",
    "clip": "It is converted once, which takes minutes; the pack is kept and loads offline.",
    "vse_infty": (
        "It is converted once, which takes minutes and about 4 GB of memory; "
        "the pack is kept and loads offline."
    ),
}


def pack_card(info: dict[str, Any]) -> Markup:
    """The pack: what it is, who made it, and where it runs."""
    pack, encoder, gallery = info["pack"], info["image_encoder"], info["gallery"]
    rows, columns = encoder["grid"]
    size = encoder["size"]
    came = pack["from"]
    known = {} if came is None else {"From the Hub": f"{came['repository']}@{came['commit']}"}
    facts = {
        **known,
        "Licence": pack["licence"],
        "Credits": pack["credits"],
        "Size": megabytes(pack["bytes"]),
        "Image encoder": f"{size} x {size} pixels to {rows} x {columns} cells of "
        f"{encoder['dim']} numbers, {megabytes(encoder['bytes'])}",
        "Pictures": f"{gallery['title']}: {gallery['progress']}",
        "Device in use": info["device"],
        "ONNX providers in use": ", ".join(info["providers"]),
    }
    return render("models/pack", pack=pack, facts=facts)


def method_cards(info: dict[str, Any]) -> Markup:
    """One card for each method of the pack."""
    methods = [
        {**method, "facts": _facts(name, method), "numbers": _numbers(method["metrics"])}
        for name, method in info["methods"].items()
    ]
    return render("models/methods", methods=methods, directions=_DIRECTIONS, command=shown_command)


def packs_here(packs: Mapping[str, PackInfo], used: str, own: bool) -> Markup:
    """The packs on this machine, each with what it is for and a button that takes it.

    Args:
        packs: see `OpenPacks.here`.
        used: the one that the visitor uses.
        own: the images are the visitor's own, and stay.
    """
    return render("models/here", packs=packs, used=used, own=own, megabytes=megabytes)


def offer_card(offer: Offer) -> Markup:
    """What would be fetched: from where, how much, under which licence."""
    files = [
        (part.repo_id, name, _size(size), name not in part.missing)
        for part in offer.parts
        for name, size in sorted(part.files.items())[:_MOST]
    ]
    return render(
        "models/offer",
        headline=line(f"To download: {amount(offer)}"),
        sources=[_source(offer, part) for part in offer.parts],
        becomes=_BECOMES[offer.kind],
        files=files,
        count=sum(len(part.files) for part in offer.parts),
    )


def amount(offer: Offer) -> str:
    """How much is to be fetched, in words."""
    if not offer.missing_bytes and not offer.unknown:
        return "nothing, all is here"
    files = "one file" if offer.unknown == 1 else f"{offer.unknown} files"
    if not offer.missing_bytes:
        return f"{files} of unknown size"
    more = f" and {files} of unknown size" if offer.unknown else ""
    return f"{'at most ' if offer.at_most else ''}{megabytes(offer.missing_bytes)}{more}"


def button(offer: Offer) -> str:
    """What stands on the button that takes the offer."""
    if not offer.missing_bytes:
        return "Download and load" if offer.unknown else "Load"
    return f"Download {megabytes(offer.missing_bytes)}"


def _facts(name: str, method: dict[str, Any]) -> dict[str, str]:
    """What a method's card lists."""
    views, search = method["views"], method["search"]
    return {
        "Name in the API": name,
        "Views x dimensions": (
            f"{views} x {method['dim']}" if views else "not known before a picture is read"
        ),
        "Parameters of the heads": f"{method['head_parameters']:,}",
        "Text encoder": megabytes(method["text_encoder_bytes"]),
        "Heads": megabytes(method["head_bytes"]),
        "Search": search["caveat"] or "exact",
        "Embeddings": f"{search['kept_as']}, {megabytes(search['bytes'])}",
        "ONNX against torch": _parity(method["parity"]),
    }


def _parity(parity: dict[str, Any]) -> str:
    """How exact the export was, see `export/build/parity.py`."""
    if not parity:
        return "not measured"
    ranking = "same ranking" if parity["ranking"] else "different ranking"
    return (
        f"at most {_short(parity['numbers'])} apart, {ranking}; rounding to fp16 kept the first "
        f"hit of {percent(parity['fp16_ranking'])} of the queries"
    )


def _numbers(metrics: dict[str, Any] | None) -> dict[str, Any]:
    """A row for each metric with a column for each direction, and what belongs to both."""
    values: dict[str, float] = {} if metrics is None else metrics["values"]
    measured = dict.fromkeys(
        key.removeprefix(direction)
        for direction in _DIRECTIONS
        for key in values
        if key.startswith(direction)
    )
    rows = {
        _METRICS.get(key, key): [_reached(values.get(way + key), key) for way in _DIRECTIONS]
        for key in measured
    }
    both: Sequence[str] = [
        f"{title} {_reached(values[key], key)}{unit}"
        for key, (title, unit) in _OF_BOTH.items()
        if key in values
    ]
    return {"rows": rows, "both": ", ".join(both)}


def _reached(value: float | None, key: str) -> str:
    if value is None:
        return ""
    if key == "nmr":
        return percent(value, 2)
    return f"{value:.3f}" if key == "view_cosine" else f"{value:.1f}"


def _short(value: float) -> str:
    return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.4g}"


def _source(offer: Offer, part: Repo) -> dict[str, str]:
    """A repository that would be fetched from."""
    second = offer.kind == VSE_INFTY and part is not offer.parts[0]
    held = ", the word pieces that its text encoder reads" if second else ""
    return {
        "From": f"{part.address}, commit {part.commit[:8]}{held}",
        "Licence": part.licence or "unknown: its card states none",
    }


def _size(size: int | None) -> str:
    return "size unknown" if size is None else megabytes(size)
