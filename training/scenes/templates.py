"""The sentences of the scenes world and of the moving world, as plain data.

Slots of a template:

- ``{x}``, ``{y}``: lists of objects, such as "a dog and three red apples"; ``{x_are}``: the verb
  that agrees with the list; ``{x_there}``: "there is" or "there are", which agrees with its first
  member; ``{x_verb}``: a verb from `VERBS` that agrees with the list.
- ``{a}``, ``{b}``, ``{c}``: single objects; ``{s}``: a place with or without time and weather;
  ``{n}`` and ``{plural}``: a number and the plural it counts.
- ``{go}``: the verb for how an object of a clip gets about ("runs"); ``{e}`` and ``{f}``: whole
  events, ``{e}`` the earlier one.

No template says more than its slots do: none claims a place, a number or an absence by itself.
"""

VERBS = (("appears", "appear"), ("is visible", "are visible"), ("can be seen", "can be seen"))

NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five"}


def _split(templates: str) -> tuple[str, ...]:
    return tuple(" ".join(template.split()) for template in templates.split("|"))


LIST = _split("""
    {x} | {x} | a picture of {x} | an image of {x} | a scene with {x} | a drawing of {x} |
    an illustration showing {x} | {x_there} {x} | {x_there} {x} in the picture |
    {x_there} {x} in this scene | {x} {x_are} shown | {x} {x_are} in view | here {x_are} {x} |
    we can see {x} | you can spot {x} | this picture shows {x} | the image contains {x} |
    look at {x} | {x} {x_verb} in the image | somewhere {x_there} {x} | one sees {x} |
    the scene includes {x}
""")
"""A plain list: used by the animal and the things view."""

PAIRED = _split("""
    {x} with {y} | {x} together with {y} | {x} along with {y} | {x} as well as {y} |
    {x} and also {y} | {x}, plus {y} | {x} in a scene with {y} | {x} sharing a picture with {y} |
    {x_there} {x}, and {y_there} {y} | {x_there} {x} as well as {y} | a picture of {x} with {y} |
    an image that has both {x} and {y} | we can see {x}, and {y} too | {x} {x_are} joined by {y} |
    besides {x}, {y_there} {y} | apart from {x} we find {y} | {y} {y_are} in the picture with {x} |
    not just {x} but also {y} | {x} and, somewhere else, {y}
""")
"""Two lists: the animal view's animals and another object, or a first object and the others."""

PLACED = _split("""
    {x} {s} | {x} {s} | {x} {x_are} {s} | {x_there} {x} {s} | {x} {x_verb} {s} |
    {s}, {x_there} {x} | {s} we can see {x} | a picture of {x} {s} | an image of {x} {s} |
    {s} you can find {x} | {x} pictured {s} | this scene {s} has {x} | {x} {x_are} shown {s} |
    a view {s} with {x} | {s}: {x} | someone drew {x} {s} |
    the picture was taken {s} and shows {x}
""")
"""Objects in a place: used by the animal and the setting view."""

BARE_PLACE = _split("""
    a scene {s} | a picture taken {s} | a view {s} | it all happens {s} | we are {s} |
    the scene is set {s}
""")

COUNTED = _split("""
    {x} and {y} | {x} with {y} | {x_there} {x} and {y} | exactly {x}, and {y} |
    {x} in total, along with {y} | count {x} and you will also find {y} | {n} {plural} and {y} |
    the number of {plural} is {n}, and {y_there} {y} | {plural}, {n} of them, and {y} |
    {plural}: {n}; also {y} | a group of {n} {plural}, and {y} |
    {n} {plural} close together, and {y} | a picture with exactly {x} and with {y} |
    we count {x}; {y_there} also {y} | one can count {x} in an image with {y} |
    besides {y}, {x_there} {x} | {y} and a set of {n} {plural} | {y} as well as {n} {plural} |
    all in all {n} {plural}, plus {y}
""")
"""A counted group and something else."""

COUNTED_ALONE = _split("""
    exactly {x} | {x} in total | {x_there} {x} | a group of {n} {plural} |
    count the {plural}: there are {n} | the number of {plural} is {n} | {plural}, {n} of them
""")

RELATIONS: dict[str, tuple[str, ...]] = {
    "left_of": _split("""
        {a} to the left of {b} | {a} left of {b} | {a} on the left of {b} |
        {a} is to the left of {b} | to the left of {b} is {a} | to the left of {b} there is {a} |
        left of {b} we can see {a} | {a} at the left side of {b} | {a} is placed left of {b} |
        a picture with {a} to the left of {b}
    """),
    "right_of": _split("""
        {a} to the right of {b} | {a} right of {b} | {a} on the right of {b} |
        {a} is to the right of {b} | to the right of {b} is {a} | to the right of {b} there is {a} |
        right of {b} we can see {a} | {a} at the right side of {b} | {a} is placed right of {b} |
        a picture with {a} to the right of {b}
    """),
    "above": _split("""
        {a} above {b} | {a} is above {b} | {a} higher up than {b} | above {b} there is {a} |
        {a} is higher in the picture than {b} | above {b} is {a} | a scene with {a} above {b}
    """),
    "below": _split("""
        {a} below {b} | {a} is below {b} | {a} beneath {b} | below {b} there is {a} |
        {a} lower down than {b} | {a} is lower in the picture than {b} |
        a scene with {a} below {b}
    """),
    "next_to": _split("""
        {a} next to {b} | {a} is next to {b} | {a} beside {b} | {a} by the side of {b} |
        {a} close to {b} | right beside {b} there is {a} | next to {b} is {a} |
        {a} and {b} side by side | {a} and {b} are next to each other
    """),
    "between": _split("""
        {a} between {b} and {c} | {a} is between {b} and {c} | between {b} and {c} there is {a} |
        {a} in between {b} and {c} | {b} and {c} with {a} between them |
        {a} flanked by {b} and {c}
    """),
}

PLACES: dict[str, tuple[str, ...]] = {
    "meadow": _split("in a meadow | in a green meadow | on a grassy meadow"),
    "beach": _split("on a beach | at the beach | on the sandy shore"),
    "street": _split("on a street | in a city street | in the city | on the road"),
    "snowfield": _split("on a snowfield | in a field of snow | in an arctic landscape"),
    "sea": _split("on the sea | at sea | on the open ocean"),
    "desert": _split("in a desert | in the desert | among desert dunes"),
    "room": _split("in a room | in a living room | inside a room"),
    "forest": _split("in a forest | in the woods | in the forest"),
    "mountains": _split("in the mountains | at the foot of high peaks | by a mountain range"),
    "farm": _split("on a farm | in a farm field | on farmland"),
    "kitchen": _split("in a kitchen | inside a kitchen | on a kitchen floor"),
    "stage": _split("on a stage | on stage | on a theater stage"),
    "moon": _split("on the moon | on the lunar surface"),
    "underwater": _split("underwater | under water | on the seabed"),
}

TIME_PHRASES: dict[str, tuple[str, ...]] = {
    "day": _split("by day | in daylight | during the day"),
    "night": _split("at night | in the dark | after dark"),
    "sunset": _split("at sunset | at dusk | as the sun goes down"),
}

WEATHER_PHRASES: dict[str, tuple[str, ...]] = {
    "clear": _split("under a clear sky | in clear weather"),
    "rain": _split("in the rain | in rainy weather | while it rains"),
    "snow": _split("in falling snow | while it snows | during a snowfall"),
    "fog": _split("in the fog | in thick fog | in misty weather"),
}

WEATHER_WORDS = {
    "clear": ("clear",),
    "rain": ("rainy", "wet"),
    "snow": ("snowy",),
    "fog": ("foggy", "misty"),
}
TIME_WORDS = {"day": ("day",), "night": ("night",), "sunset": ("evening",)}

WAYS = {"animals": "runs", "people": "walks", "vehicles": "drives"}
WAY = "slides"  # of all other groups
WAY_ALOFT = "flies"

EVENTS: dict[str, tuple[str, ...]] = {
    "passes_right": _split("{a} {go} by from left to right | {a} crosses the picture to the right"),
    "passes_left": _split("{a} {go} by from right to left | {a} crosses the picture to the left"),
    "pops_up": _split("{a} pops up from below | {a} peeks up and sinks again"),
    "swings_down": _split("{a} swings down from above | {a} comes down and goes up again"),
    "flashes": _split("{a} appears for a moment | {a} shows up briefly"),
    "jumps": _split("{a} jumps | {a} leaps up"),
    "spins": _split("{a} spins around | {a} turns a somersault"),
    "swells": _split("{a} swells for a moment | {a} gets bigger and smaller again"),
    "vanishes": _split("{a} vanishes for a moment | {a} disappears and comes back"),
    "enters_left": _split("{a} {go} in from the left | {a} comes in from the left and stays"),
    "enters_right": _split("{a} {go} in from the right | {a} comes in from the right and stays"),
    "leaves_left": _split("{a} {go} out on the left | {a} leaves to the left"),
    "leaves_right": _split("{a} {go} out on the right | {a} leaves to the right"),
    "takes_off": _split("{a} takes off | {a} rises and is gone"),
    "drops_in": _split("{a} drops in from above | {a} falls down and stays"),
    "grows": _split("{a} grows | {a} becomes larger"),
    "shrinks": _split("{a} shrinks | {a} becomes smaller"),
    "moves_right": _split("{a} moves from the left side to the right | {a} {go} over to the right"),
    "moves_left": _split("{a} moves from the right side to the left | {a} {go} over to the left"),
    "tips_over": _split("{a} tips over | {a} falls on its side"),
    "passes_front": _split("{a} passes in front of {b} | {a} {go} past before {b}"),
}
"""What one object of a clip does, by kind of event (`training/scenes/motion.py`)."""

CHANGES: dict[str, tuple[str, ...]] = {
    "night_falls": _split("night falls {s} | it gets dark {s} | day turns to night {s}"),
    "day_breaks": _split("day breaks {s} | it becomes light {s} | night turns to day {s}"),
    "rain_begins": _split("it begins to rain {s} | rain sets in {s}"),
    "snow_begins": _split("it begins to snow {s} | snow starts to fall {s}"),
}
"""What becomes of a whole clip."""

ORDER = _split("""
    {e}, then {f} | first {e}, then {f} | {e} before {f} | {f} after {e} | after {e}, {f} |
    {e} and later {f} | {f}, but first {e}
""")
"""Two events of a clip in order."""
