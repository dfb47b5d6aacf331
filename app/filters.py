"""Narrowing a collection by what is known about its pictures, before anything is ranked.

Pictures must satisfy every fact that is filtered by, with any one of the values wanted for it:
setting beach or sea, and time night. A picture of which a fact is not known never satisfies it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.collection import Collection

Wanted = Mapping[str, Sequence[str]]
_NAMED = 20  # values listed in a refusal


def offered(collection: Collection) -> dict[str, dict[str, int]]:
    """Each fact with its values, in the alphabet's order, and how many pictures have each."""
    return {
        fact: {value: len(ids) for value, ids in values.items()}
        for fact, values in collection.facts.items()
    }


def checked(collection: Collection, wanted: Any) -> dict[str, list[str]]:
    """Filters that make sense, without those that want nothing.

    Args:
        collection: what is filtered.
        wanted: for each fact a list of values, or one value; None is no filter.

    Raises:
        ValueError: it has another form, or names a fact or a value that no picture has.
    """
    if wanted is None:
        return {}
    if not isinstance(wanted, Mapping):
        raise ValueError(
            'filters must be an object such as {"setting": ["beach"]}, '
            f"not {type(wanted).__name__}"
        )
    return {
        fact: values
        for fact, given in wanted.items()
        if (values := _checked_values(collection.facts, fact, given))
    }


def allowed(collection: Collection, wanted: Wanted) -> frozenset[int] | None:
    """The ids of the pictures that satisfy filters from `checked`; None where there are none."""
    if not wanted:
        return None
    each = [
        frozenset().union(*(collection.facts[fact][value] for value in values))
        for fact, values in wanted.items()
    ]
    return frozenset.intersection(*each)


def describe(wanted: Wanted) -> str:
    """Filters in words.

    >>> describe({"setting": ["beach", "sea"], "time": ["night"]})
    'setting: beach or sea; time: night'
    """
    return "; ".join(f"{fact}: {' or '.join(values)}" for fact, values in wanted.items())


def _checked_values(known: Mapping[str, Mapping[str, Any]], fact: Any, given: Any) -> list[str]:
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
