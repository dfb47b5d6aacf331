"""Errors of requests, and error messages without paths of this machine."""

import re
import tempfile
from pathlib import Path

from huggingface_hub import constants

_LONGEST = 1000  # characters of a message
# an absolute path; not part of a URL, not owner/name
_ABSOLUTE = re.compile(r"(?<![\w:/.-])(?:[A-Za-z]:)?/(?:[^\s\"'/]+/)*([^\s\"'/]*)")


class GoneError(ValueError):
    """A pack or collection is no longer open; the message says what to do."""


class ForbiddenError(ValueError):
    """The operation is reserved for the owner of this machine."""


class FullError(ValueError):
    """No room for another upload or download at present."""


def without_paths(sentence: str) -> str:
    """Shortens paths in a message to file names.

    >>> without_paths('/home/me/hub/pack.json has 2 bytes; see http://host/owner/name')
    'pack.json has 2 bytes; see http://host/owner/name'
    """
    roots = (Path(constants.HF_HUB_CACHE), Path(tempfile.gettempdir()), Path.home(), Path.cwd())
    known = {str(place) for root in roots for place in (root, root.resolve())}
    for root in sorted(known, key=len, reverse=True):  # folders may contain spaces and each other
        sentence = sentence.replace(f"{root}/", "/")
    sentence = _ABSOLUTE.sub(r"\1", sentence)
    return sentence if len(sentence) <= _LONGEST else f"{sentence[:_LONGEST]} …"
