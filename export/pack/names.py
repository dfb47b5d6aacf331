"""Names that bundled packs had before; what says one of them still finds its pack.

People wrote them down: in `--pack` and `POLYVIEW_PACK`, in a Space's variables, in links and calls
that name a pack's columns ("photos_mini/mvam"), in paths to `app/bundled/`. What was encoded
under a former name is found again without this: it goes by checksums, which no name enters.
"""

FORMER = {"photos_mini": "photos"}


def present_name(name: str) -> str:
    """The name that a bundled pack has now; any other name as it is.

    >>> present_name("photos_mini"), present_name("scenes")
    ('photos', 'scenes')
    """
    return FORMER.get(name, name)
