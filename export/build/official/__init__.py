"""The authors' checkpoints as packs: `python -m export.official --help`."""
