"""Moves a gallery to Qdrant.

`python -m polyview migrate --gallery DIR --pack PACK --to qdrant://host:port/collection`

Views come from the cache if the gallery was indexed on this machine; other images are encoded. A
point's id depends on the image's contents, so the command can be stopped and repeated at any time:
existing points are skipped, and for a moved file only the path is updated. At the end all points
are counted, and the views of some are compared with the originals.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from polyview.app.gallery.address import FORM, Address
from polyview.app.gallery.indexing import Progress, ProgressBar
from polyview.app.gallery.scan import from_folder, from_pack
from polyview.app.gallery.store import cache_folder
from polyview.app.packs.presets import pack_folder
from polyview.app.settings import DEVICES
from polyview.export.runtime import Runtime

_SHOWN = 20  # refused files listed


def main(argv: Sequence[str]) -> int:
    """Runs the command.

    Returns:
        0 if everything is in Qdrant, 1 if not, 130 if it was stopped; the reason is printed.
    """
    logging.basicConfig(level=logging.WARNING, format="polyview: %(message)s")
    options = _parser().parse_args(argv)
    try:
        return _migrate(options)
    except (ValueError, OSError) as error:
        print(f"polyview: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("polyview: stopped; the same command resumes", file=sys.stderr)
        return 130


def _migrate(options: argparse.Namespace) -> int:
    address = Address.parse(options.to)
    from polyview.app.gallery.migration import migrate  # needs an optional package
    from polyview.app.gallery.qdrant import Points

    points = Points(address)  # before the pack is loaded, which takes seconds
    try:
        cache = cache_folder()
        folder = pack_folder(options.pack, cache)
        runtime = Runtime.load(folder, options.device)
        runtime.require_images()
        if options.gallery is None:
            collection = from_pack(folder)
        else:
            collection = from_folder(options.gallery, options.follow_links)
        bar, place = ProgressBar(), collection.folder

        def tell(done: int, total: int) -> None:
            bar(Progress("pictures", done, total))

        report = migrate(runtime, collection, points, cache, tell, options.half, options.graph)
        bar(Progress("ready", total=report.written + report.present))
    finally:
        points.close()
    print(f"polyview: {report}")
    for refused in report.refused[:_SHOWN]:
        print(f"polyview: {refused.reason}")
    if len(report.refused) > _SHOWN:
        print(f"polyview: and {len(report.refused) - _SHOWN} more")
    print(
        f"polyview: python app/main.py --pack {options.pack} --gallery '{address}?pictures={place}'"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m polyview migrate", description="Moves a gallery, with its views, to Qdrant."
    )
    parser.add_argument(
        "--gallery", type=Path, help="a folder of images (default: those that come with the pack)"
    )
    parser.add_argument(
        "--pack", default="scenes", help="a bundled name, a pack's folder, or a Hub id"
    )
    parser.add_argument(
        "--follow-links", action="store_true", help="links in the folder may lead out of it"
    )
    parser.add_argument("--to", required=True, metavar="ADDRESS", help=FORM)
    parser.add_argument("--device", default="auto", choices=DEVICES)
    new = parser.add_argument_group("a new collection", "Options for where there is none yet.")
    new.add_argument("--half", action="store_true", help="keep float16: half the memory")
    new.add_argument(
        "--graph", action="store_true", help="build an HNSW graph, for ?search=approximate"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
