"""Searches a folder of images from a shell: `python -m polyview search "a dog" --gallery DIR`.

Reads new files first. Prints a score and a path on each line, and the time of a clip's best frame.
"""

import argparse
import io
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from polyview.app.settings import DEVICES


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status; `argv` defaults to the program's arguments."""
    options = _parser().parse_args(argv)
    logging.basicConfig(level=logging.ERROR, format="polyview: %(message)s")
    try:
        return _search(options)
    except BrokenPipeError:  # the next program, such as head, closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        print(f"polyview: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("polyview: stopped; images read so far are kept", file=sys.stderr)
        return 128 + signal.SIGINT


def _search(options: argparse.Namespace) -> int:
    """Searches and prints the hits; returns the exit status."""
    if options.explain is not None and options.explain.suffix.lower() != ".png":
        raise ValueError(f"--explain {options.explain} must end in .png")
    if not 1 <= options.k <= 1000:
        raise ValueError(f"-k must be 1 to 1,000, not {options.k}")
    from polyview.app.api.library import Library  # imports torch, which takes seconds
    from polyview.app.gallery.indexing import ProgressLine
    from polyview.models.files import atomic_write

    watch = ProgressLine(sys.stderr) if sys.stderr.isatty() else None
    with Library(
        options.pack, options.gallery, method=options.method, device=options.device, watch=watch
    ) as library:
        library.close()  # stops encoding captions, which are not printed
        for refusal in library.refused:
            print(f"polyview: left out: {refusal.reason}", file=sys.stderr)
        query = Path(options.query[1:]) if options.query.startswith("@") else options.query
        results = library.search(query, options.k)
        if options.explain is not None and results:
            png = io.BytesIO()
            library.explain(query, results[0]).light().save(png, "PNG")
            atomic_write(options.explain, png.getvalue())
    if options.json:
        hits = [hit.model_dump(mode="json", exclude_defaults=True) for hit in results]
        answer = {"query": options.query, "method": library.method, "matches": results.matches}
        unknown = [word.model_dump() for word in results.unknown]
        print(json.dumps({**answer, "unknown": unknown, "hits": hits}, indent=2))
    elif options.paths0:
        sys.stdout.buffer.write(b"".join(os.fsencode(hit.path) + b"\0" for hit in results))
    else:
        for hit in results:
            time = "" if hit.seconds is None else f"\tat {hit.seconds:.1f} s"
            path = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(hit.path))
            print(f"{hit.score:.3f}\t{path}{time}")
    sys.stdout.flush()
    for entry in results.unknown:
        status = f"read as “{entry.read_as}”" if entry.read_as else "unknown to this pack"
        print(f"polyview: “{entry.word}” is {status}", file=sys.stderr)
    if results.matches is False:
        print("polyview: no image matches; these are the closest", file=sys.stderr)
    return 1 if results.matches is False or not results else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m polyview search",
        description="Search a folder of images; prints a score and a path on each line.",
        epilog="Exits with 0 if there are results, 1 if nothing matches, 2 after an error.",
    )
    text = 'words, terms such as "2: dog + beach - people", or @FILE for an image'
    parser.add_argument("query", help=text)
    text = "a folder of images, or a ZIP archive of them (default: the pack's own images)"
    parser.add_argument("--gallery", help=text)
    text = "a bundled name, preset, folder or Hub id (default: photos with --gallery, else scenes)"
    parser.add_argument("--pack", help=text)
    parser.add_argument("--method", help="a method, or several joined by + (default: the best)")
    parser.add_argument("-k", type=int, default=10, help="number of hits, 1 to 1,000 (default: 10)")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print JSON")
    text = "print only paths, each followed by a NUL, for xargs -0"
    output.add_argument("--paths0", action="store_true", help=text)
    text = "write the best image with the evidence of its score"
    parser.add_argument("--explain", type=Path, metavar="OUT.png", help=text)
    parser.add_argument("--device", default="auto", choices=DEVICES, help="auto: CUDA if usable")
    return parser
