"""The command line: `polyview` starts the app, `polyview COMMAND` runs one of `COMMANDS`.

`python -m polyview COMMAND` does the same, also in a clone without installation.
"""

import importlib
import sys
from collections.abc import Sequence

COMMANDS = {
    "app": "app.main",
    "search": "app.api.shell",
    "migrate": "app.migrate",
    "data": "training.data.open_split",
    "scenes": "training.scenes.store",
    "gallery": "training.scenes.gallery",
    "region-gallery": "training.data.precomputed",
    "train": "training.train",
    "pretrain": "training.pretrain",
    "distill": "training.distill",
    "evaluate": "training.evaluate",
    "check": "training.check",
    "sweep": "training.sweep",
    "plot": "training.plot",
    "export": "export.to_onnx",
    "clip": "export.clip",
    "official": "export.official",
    "hub": "export.hub.packs",
    "space": "export.space",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status. Without a command, the options go to the app."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments in (["-h"], ["--help"]):
        usage = "usage: polyview [COMMAND] [OPTIONS]; the default command is app; the commands are"
        print(usage, *COMMANDS, sep="\n  ")
        return 0
    command = arguments.pop(0) if arguments and not arguments[0].startswith("-") else "app"
    if command not in COMMANDS:
        message = f'polyview: there is no command "{command}"; choose one of:'
        print(message, *COMMANDS, sep="\n  ", file=sys.stderr)
        return 2
    return importlib.import_module(f"polyview.{COMMANDS[command]}").main(arguments) or 0


if __name__ == "__main__":
    sys.exit(main())
