"""Narrowing a collection by what is known about its images, before anything is ranked.

Images must satisfy every fact that is filtered by, with any one of the values wanted for it:
setting beach or sea, and time night. An image of which a fact is not known never satisfies it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from polyview.app.gallery.scan import Collection

_NAMED = 20  # values listed in a refusal


@dataclass(frozen=True)
class Filters:
    """What is filtered by; build it with `of`.

    Attributes:
        wanted: for each fact the values wanted, at least one.
        ids: of the images that satisfy it; None where there is no filter.

    >>> str(Filters({"setting": ["beach", "sea"], "time": ["night"]}))
    'setting: beach or sea; time: night'
    """

    wanted: Mapping[str, list[str]] = field(default_factory=dict)
    ids: frozenset[int] | None = None

    @classmethod
    def of(cls, collection: Collection, wanted: Any) -> Filters:
        """Filters that make sense, without those that want nothing.

        Args:
            collection: what is filtered.
            wanted: for each fact a list of values, or one value; None is no filter.

        Raises:
            ValueError: it has another form, or names a fact or a value that no image has.
        """
        if wanted is not None and not isinstance(wanted, Mapping):
            raise ValueError(
                'filters must be an object such as {"setting": ["beach"]}, '
                f"not {type(wanted).__name__}"
            )
        filters = {
            fact: values
            for fact, given in (wanted or {}).items()
            if (values := _checked(collection.facts, fact, given))
        }
        each = [
            frozenset().union(*(collection.facts[fact][value] for value in values))
            for fact, values in filters.items()
        ]
        return cls(filters, frozenset.intersection(*each) if each else None)

    def __str__(self) -> str:
        """The filters in words."""
        return "; ".join(f"{fact}: {' or '.join(v)}" for fact, v in self.wanted.items())


def offered(collection: Collection) -> dict[str, dict[str, int]]:
    """Each fact with its values, in the alphabet's order, and how many images have each."""
    return {
        fact: {value: len(ids) for value, ids in values.items()}
        for fact, values in collection.facts.items()
    }


def _checked(known: Mapping[str, Mapping[str, Any]], fact: Any, given: Any) -> list[str]:
    if not known:
        raise ValueError("nothing is known about these pictures that they could be filtered by")
    if fact not in known:
        raise ValueError(
            f'pictures cannot be filtered by "{str(fact)[:80]}"; choose one of {", ".join(known)}'
        )
    values = [given] if isinstance(given, str) else given
    if not isinstance(values, list | tuple):
        raise ValueError(f'the values wanted for "{fact}" must be a list, not {given!r:.80}')
    for value in values:
        if not isinstance(value, str) or value not in known[fact]:
            some = list(known[fact])[:_NAMED]
            more = ", …" if len(known[fact]) > _NAMED else ""
            raise ValueError(
                f'no picture has the {fact} "{str(value)[:80]}"; '
                f"choose from {', '.join(some)}{more}"
            )
    return list(dict.fromkeys(values))
