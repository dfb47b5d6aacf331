"""Why a request is refused, and the sentence for strangers: without paths of this machine."""

import re
import tempfile
from pathlib import Path

from huggingface_hub import constants

_LONGEST = 1000  # characters of a sentence
# a path from the root, not that of a web address and not owner/name
_ABSOLUTE = re.compile(r"(?<![\w:/.-])(?:[A-Za-z]:)?/(?:[^\s\"'/]+/)*([^\s\"'/]*)")


class GoneError(ValueError):
    """A pack or collection is not open any more; the message says what to do."""


class ForbiddenError(ValueError):
    """Only the owner of this machine may do that."""


class FullError(ValueError):
    """There is no room for an upload or a download now."""


def without_paths(sentence: str) -> str:
    """A sentence in which files have their last name alone.

    >>> without_paths('/home/me/hub/pack.json has 2 bytes; see http://host/owner/name')
    'pack.json has 2 bytes; see http://host/owner/name'
    """
    roots = (Path(constants.HF_HUB_CACHE), Path(tempfile.gettempdir()), Path.home(), Path.cwd())
    known = {str(place) for root in roots for place in (root, root.resolve())}
    for root in sorted(known, key=len, reverse=True):  # they may hold spaces, and one another
        sentence = sentence.replace(f"{root}/", "/")
    sentence = _ABSOLUTE.sub(r"\1", sentence)
    return sentence if len(sentence) <= _LONGEST else f"{sentence[:_LONGEST]} …"
