"""Polyview as a library.

In a clone, `models/`, `export/`, `training/` and `app/` lie beside this folder, so that the app and
a Space start without installing; an installed package holds them. Their imported names are
`polyview.models` and so on in both, and never collide with folders of a user's own.
"""

from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
if (_ROOT / "models").is_dir() and (_ROOT / "app" / "main.py").is_file():
    __path__.append(str(_ROOT))
