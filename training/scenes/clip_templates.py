"""The sentences of the moving world, as plain data.

Slots: ``{a}`` and ``{b}`` are things; ``{go}`` the verb for how a thing gets about ("runs");
``{e}`` and ``{f}`` whole events, ``{e}`` the earlier one.
"""

WAYS = {"animals": "runs", "people": "walks", "vehicles": "drives"}
WAY = "slides"  # of everything else
WAY_ALOFT = "flies"

EVENTS: dict[str, tuple[str, ...]] = {
    "passes_right": ("{a} {go} by from left to right", "{a} crosses the picture to the right"),
    "passes_left": ("{a} {go} by from right to left", "{a} crosses the picture to the left"),
    "pops_up": ("{a} pops up from below", "{a} peeks up and sinks again"),
    "swings_down": ("{a} swings down from above", "{a} comes down and goes up again"),
    "flashes": ("{a} appears for a moment", "{a} shows up briefly"),
    "jumps": ("{a} jumps", "{a} leaps up"),
    "spins": ("{a} spins around", "{a} turns a somersault"),
    "swells": ("{a} swells for a moment", "{a} gets bigger and smaller again"),
    "vanishes": ("{a} vanishes for a moment", "{a} disappears and comes back"),
    "enters_left": ("{a} {go} in from the left", "{a} comes in from the left and stays"),
    "enters_right": ("{a} {go} in from the right", "{a} comes in from the right and stays"),
    "leaves_left": ("{a} {go} out on the left", "{a} leaves to the left"),
    "leaves_right": ("{a} {go} out on the right", "{a} leaves to the right"),
    "takes_off": ("{a} takes off", "{a} rises and is gone"),
    "drops_in": ("{a} drops in from above", "{a} falls down and stays"),
    "grows": ("{a} grows", "{a} becomes larger"),
    "shrinks": ("{a} shrinks", "{a} becomes smaller"),
    "moves_right": ("{a} moves from the left side to the right", "{a} {go} over to the right"),
    "moves_left": ("{a} moves from the right side to the left", "{a} {go} over to the left"),
    "tips_over": ("{a} tips over", "{a} falls on its side"),
    "passes_front": ("{a} passes in front of {b}", "{a} {go} past before {b}"),
}

CHANGES: dict[str, tuple[str, ...]] = {
    "night_falls": ("night falls {s}", "it gets dark {s}", "day turns to night {s}"),
    "day_breaks": ("day breaks {s}", "it becomes light {s}", "night turns to day {s}"),
    "rain_begins": ("it begins to rain {s}", "rain sets in {s}"),
    "snow_begins": ("it begins to snow {s}", "snow starts to fall {s}"),
}

ORDER = (
    "{e}, then {f}",
    "first {e}, then {f}",
    "{e} before {f}",
    "{f} after {e}",
    "after {e}, {f}",
    "{e} and later {f}",
    "{f}, but first {e}",
)
