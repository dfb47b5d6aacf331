"""The sentences of the scenes world and of the moving world, read from `sentences.toml`.

Slots of a sentence:

- ``{x}``, ``{y}``: lists of objects, such as "a dog and three red apples"; ``{x_are}``: the verb
  that agrees with the list; ``{x_there}``: "there is" or "there are", which agrees with its first
  member; ``{x_verb}``: a verb from `VERBS` that agrees with the list.
- ``{a}``, ``{b}``, ``{c}``: single objects; ``{s}``: a place with or without time and weather;
  ``{n}`` and ``{plural}``: a number and the plural it counts.
- ``{go}``: the verb for an object's motion ("runs"); ``{e}`` and ``{f}``: whole events, ``{e}`` the
  earlier one.

Templates themselves assert nothing: no place, number or absence.
"""

import tomllib
from pathlib import Path
from typing import Any

VERBS = (("appears", "appear"), ("is visible", "are visible"), ("can be seen", "can be seen"))
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five"}
WAYS = {"animals": "runs", "people": "walks", "vehicles": "drives"}
WAY = "slides"  # of all other groups
WAY_ALOFT = "flies"

Sentences = tuple[str, ...]
_FILE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("sentences.toml").read_text("utf-8"))


def _table(name: str) -> dict[str, Sentences]:
    return {key: tuple(sentences) for key, sentences in _FILE[name].items()}


LIST: Sentences = tuple(_FILE["list"])
PAIRED: Sentences = tuple(_FILE["paired"])
PLACED: Sentences = tuple(_FILE["placed"])
BARE_PLACE: Sentences = tuple(_FILE["bare_place"])
COUNTED: Sentences = tuple(_FILE["counted"])
COUNTED_ALONE: Sentences = tuple(_FILE["counted_alone"])
ORDER: Sentences = tuple(_FILE["order"])
RELATIONS, PLACES = _table("relations"), _table("places")
TIME_PHRASES, TIME_WORDS = _table("time_phrases"), _table("time_words")
WEATHER_PHRASES, WEATHER_WORDS = _table("weather_phrases"), _table("weather_words")
EVENTS, CHANGES = _table("events"), _table("changes")
