"""The object classes of the scenes world: names, synonyms, glyphs, colours.

The tables are plain data. A row is ``(name, glyphs, synonyms)``:

- ``glyphs`` is either a string of emoji, each an alternative look of the class, or a list of
  ``"colour=emoji"`` and ``"colour=emoji@hue"`` entries, where ``@hue`` (degrees) repaints the
  dominant hue of the glyph. Classes of the second kind have an exact ``color`` in the truth.
- ``synonyms`` is a comma-separated string. Plurals follow English rules, `IRREGULAR` has the rest.

No surface form belongs to two classes, and none occurs inside another class's form, so that the
words of a caption identify classes without doubt (tested).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

Row = tuple[str, str | list[str], str]


@dataclass(frozen=True)
class Look:
    """One way a class can look.

    Attributes:
        glyph: the emoji, one code point.
        color: the colour word that is true of this look, if colours are part of the truth.
        hue: the hue in degrees that replaces the glyph's dominant hue, or None to leave it.
    """

    glyph: str
    color: str | None = None
    hue: float | None = None


@dataclass(frozen=True)
class ObjectClass:
    """One kind of thing that a scene can hold.

    Attributes:
        name: the canonical singular name.
        group: the group it belongs to, such as ``"animals"``.
        looks: its alternative looks.
        synonyms: other singular names, everyday words only.
        aloft: whether it may float in the sky.
    """

    name: str
    group: str
    looks: tuple[Look, ...]
    synonyms: tuple[str, ...] = ()
    aloft: bool = False

    @property
    def plural(self) -> str:
        """The plural of the canonical name."""
        return pluralize(self.name)

    @cached_property
    def nouns(self) -> tuple[tuple[str, str], ...]:
        """Every (singular, plural) pair, the canonical one first."""
        return tuple((noun, pluralize(noun)) for noun in (self.name, *self.synonyms))

    @cached_property
    def colors(self) -> tuple[str, ...]:
        """The colours this class comes in; empty if colour is not part of its truth."""
        return tuple(dict.fromkeys(look.color for look in self.looks if look.color))


IRREGULAR = {
    "mouse": "mice",
    "wolf": "wolves",
    "snowman": "snowmen",
    "fish": "fish",
    "deer": "deer",
    "sheep": "sheep",
    "octopus": "octopuses",
    "cactus": "cacti",
    "loaf of bread": "loaves of bread",
    "bunch of grapes": "bunches of grapes",
    "box of fries": "boxes of fries",
    "box of popcorn": "boxes of popcorn",
    "cup of coffee": "cups of coffee",
    "piece of cheese": "pieces of cheese",
    "wedge of cheese": "wedges of cheese",
    "slice of pizza": "slices of pizza",
    "glass of beer": "glasses of beer",
    "mug of beer": "mugs of beer",
}


def pluralize(noun: str) -> str:
    """Returns the plural of a singular noun.

    >>> [pluralize(noun) for noun in ("puppy", "fox", "monkey", "loaf of bread")]
    ['puppies', 'foxes', 'monkeys', 'loaves of bread']
    """
    if noun in IRREGULAR:
        return IRREGULAR[noun]
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


ANIMALS: list[Row] = [
    ("dog", "🐶🐕", "puppy, hound"),
    ("cat", "🐱🐈", "kitten, kitty"),
    ("mouse", "🐭🐁", ""),
    ("rabbit", "🐰🐇", "bunny"),
    ("fox", "🦊", ""),
    ("bear", "🐻", ""),
    ("panda", "🐼", ""),
    ("koala", "🐨", ""),
    ("tiger", "🐯🐅", ""),
    ("lion", "🦁", ""),
    ("leopard", "🐆", "cheetah"),
    ("cow", "🐮🐄", ""),
    ("pig", "🐷🐖", "piglet"),
    ("frog", "🐸", "toad"),
    ("monkey", "🐵🐒", ""),
    ("gorilla", "🦍", "ape"),
    ("chicken", "🐔🐓", ""),
    ("chick", "🐤🐥🐣", ""),
    ("penguin", "🐧", ""),
    ("duck", "🦆", ""),
    ("swan", "🦢", ""),
    ("flamingo", "🦩", ""),
    ("peacock", "🦚", ""),
    ("wolf", "🐺", ""),
    ("horse", "🐴🐎", "pony"),
    ("unicorn", "🦄", ""),
    ("snail", "🐌", ""),
    ("spider", "🕷", ""),
    ("turtle", "🐢", "tortoise"),
    ("snake", "🐍", "serpent"),
    ("lizard", "🦎", "gecko"),
    ("octopus", "🐙", ""),
    ("lobster", "🦞", ""),
    ("crab", "🦀", ""),
    ("fish", "🐟🐠", ""),
    ("dolphin", "🐬", ""),
    ("whale", "🐳🐋", ""),
    ("shark", "🦈", ""),
    ("crocodile", "🐊", "alligator"),
    ("zebra", "🦓", ""),
    ("elephant", "🐘", ""),
    ("rhino", "🦏", "rhinoceros"),
    ("camel", "🐪🐫", ""),
    ("giraffe", "🦒", ""),
    ("kangaroo", "🦘", ""),
    ("sheep", "🐑🐏", ""),
    ("deer", "🦌", "stag"),
    ("hedgehog", "🦔", ""),
    ("dinosaur", "🦕🦖", ""),
]
FLYING_ANIMALS: list[Row] = [
    ("parrot", "🦜", ""),
    ("eagle", "🦅", "hawk"),
    ("owl", "🦉", ""),
    ("bat", "🦇", ""),
    ("bee", "🐝", "honeybee"),
    ("butterfly", "🦋", ""),
    ("ladybug", "🐞", "ladybird"),
]
PEOPLE: list[Row] = [
    ("baby", "👶", "infant"),
    ("clown", "🤡", ""),
    ("santa", "🎅", "santa claus"),
    ("wizard", "🧙", "sorcerer"),
    ("ninja", "🥷", ""),
    ("dancer", "💃", ""),
    ("builder", "👷", "construction worker"),
    ("guard", "💂", ""),
]
FOOD: list[Row] = [
    ("apple", ["red=🍎", "green=🍏"], ""),
    ("pear", "🍐", ""),
    ("tangerine", "🍊", "mandarin"),
    ("lemon", "🍋", ""),
    ("banana", "🍌", ""),
    ("watermelon", "🍉", ""),
    ("bunch of grapes", "🍇", ""),
    ("strawberry", "🍓", ""),
    ("pineapple", "🍍", ""),
    ("eggplant", "🍆", "aubergine"),
    ("avocado", "🥑", ""),
    ("chili pepper", "🌶", ""),
    ("carrot", "🥕", ""),
    ("mushroom", "🍄", "toadstool"),
    ("loaf of bread", "🍞", ""),
    ("croissant", "🥐", ""),
    ("pretzel", "🥨", ""),
    ("wedge of cheese", "🧀", "piece of cheese"),
    ("burger", "🍔", "hamburger, cheeseburger"),
    ("box of fries", "🍟", ""),
    ("pizza", "🍕", "slice of pizza"),
    ("taco", "🌮", ""),
    ("box of popcorn", "🍿", ""),
    ("ice cream", "🍦🍨", ""),
    ("donut", "🍩", "doughnut"),
    ("cookie", "🍪", "biscuit"),
    ("cake", "🎂🍰", "birthday cake"),
    ("cupcake", "🧁", "muffin"),
    ("lollipop", "🍭", ""),
    ("cup of coffee", "☕", ""),
    ("mug of beer", "🍺", "glass of beer"),
]
VEHICLES: list[Row] = [
    ("car", ["red=🚗", "blue=🚗@215", "green=🚗@120"], "automobile"),
    ("taxi", "🚕", "cab"),
    ("bus", "🚌", "coach"),
    ("ambulance", "🚑", ""),
    ("fire engine", "🚒", ""),
    ("truck", "🚚🚛", "lorry"),
    ("tractor", "🚜", ""),
    ("bicycle", "🚲", "bike"),
    ("motorcycle", "🏍", "motorbike"),
    ("scooter", "🛵", "moped"),
    ("train", "🚂", "locomotive"),
    ("sailboat", "⛵", "sailing boat"),
    ("ship", "🚢🛳", "cruise ship"),
]
AIRCRAFT: list[Row] = [
    ("plane", "✈🛩", "airplane, aeroplane"),
    ("helicopter", "🚁", "chopper"),
    ("rocket", "🚀", "spaceship"),
    ("ufo", "🛸", "flying saucer"),
]
BUILDINGS: list[Row] = [
    ("house", "🏠", "cottage"),
    ("castle", "🏰", "palace"),
    ("church", "⛪", "chapel"),
    ("tent", "⛺", ""),
    ("ferris wheel", "🎡", ""),
]
PLANTS: list[Row] = [
    ("tree", "🌳🌲", ""),
    ("palm", "🌴", ""),
    ("cactus", "🌵", ""),
    ("sunflower", "🌻", ""),
    ("rose", "🌹", ""),
    ("tulip", ["pink=🌷", "purple=🌷@280"], ""),
    ("maple leaf", "🍁", ""),
]
SPORTS: list[Row] = [
    ("soccer ball", "⚽", "football"),
    ("basketball", "🏀", ""),
    ("baseball", "⚾", ""),
    ("tennis racket", "🎾", ""),
    ("skateboard", "🛹", ""),
    ("boxing glove", "🥊", ""),
    ("trophy", "🏆", ""),
    ("dartboard", "🎯", "bullseye"),
]
MUSIC: list[Row] = [
    ("guitar", "🎸", ""),
    ("violin", "🎻", "fiddle"),
    ("trumpet", "🎺", ""),
    ("saxophone", "🎷", "sax"),
    ("drum", "🥁", ""),
    ("piano", "🎹", "keyboard"),
    ("microphone", "🎤", "mic"),
    ("bell", "🔔", ""),
]
THINGS: list[Row] = [
    ("book", ["red=📕", "green=📗", "blue=📘", "orange=📙"], ""),
    ("umbrella", ["purple=☂@280", "red=☂@0", "blue=☂@215", "green=☂@120"], ""),
    ("shirt", ["blue=👕", "pink=👕@350", "purple=👕@280"], "tee shirt"),
    ("present", "🎁", "gift"),
    ("key", "🔑", ""),
    ("alarm clock", "⏰", ""),
    ("camera", "📷📸", ""),
    ("laptop", "💻", "computer"),
    ("television", "📺", "tv"),
    ("light bulb", "💡", "lightbulb"),
    ("backpack", ["red=🎒", "blue=🎒@215", "green=🎒@120"], "rucksack, schoolbag"),
    ("suitcase", "🧳", ""),
    ("crown", "👑", ""),
    ("top hat", "🎩", ""),
    ("sneaker", "👟", "running shoe"),
    ("anchor", "⚓", ""),
    ("robot", "🤖", ""),
    ("snowman", "⛄☃", ""),
    ("pumpkin", "🎃", "jack-o-lantern"),
    ("diamond", "💎", "gem"),
    ("chair", "🪑", ""),
    ("sofa", "🛋", "couch"),
    ("traffic light", "🚦🚥", ""),
    ("magnet", "🧲", ""),
]
FLOATING_THINGS: list[Row] = [
    ("balloon", ["red=🎈", "blue=🎈@215", "green=🎈@120", "purple=🎈@280"], ""),
    ("heart", ["red=❤", "blue=💙", "green=💚", "yellow=💛", "purple=💜"], ""),
    ("kite", "🪁", ""),
    ("ghost", "👻", ""),
]

_TABLES: Sequence[tuple[str, bool, list[Row]]] = (
    ("animals", False, ANIMALS),
    ("animals", True, FLYING_ANIMALS),
    ("people", False, PEOPLE),
    ("food", False, FOOD),
    ("vehicles", False, VEHICLES),
    ("vehicles", True, AIRCRAFT),
    ("buildings", False, BUILDINGS),
    ("plants", False, PLANTS),
    ("sports", False, SPORTS),
    ("music", False, MUSIC),
    ("things", False, THINGS),
    ("things", True, FLOATING_THINGS),
)


def _looks(glyphs: str | list[str]) -> tuple[Look, ...]:
    if isinstance(glyphs, str):
        return tuple(Look(glyph) for glyph in glyphs)
    looks = []
    for entry in glyphs:
        color, _, rest = entry.partition("=")
        glyph, _, hue = rest.partition("@")
        looks.append(Look(glyph, color, float(hue) if hue else None))
    return tuple(looks)


def _build() -> tuple[ObjectClass, ...]:
    return tuple(
        ObjectClass(
            name=name,
            group=group,
            looks=_looks(glyphs),
            synonyms=tuple(word.strip() for word in synonyms.split(",") if word.strip()),
            aloft=aloft,
        )
        for group, aloft, rows in _TABLES
        for name, glyphs, synonyms in rows
    )


CLASSES: tuple[ObjectClass, ...] = _build()
CLASS_INDEX: dict[str, int] = {kind.name: index for index, kind in enumerate(CLASSES)}
GROUPS: tuple[str, ...] = tuple(dict.fromkeys(kind.group for kind in CLASSES))
COLORS: tuple[str, ...] = tuple(sorted({color for kind in CLASSES for color in kind.colors}))


def names_of(kind: str) -> tuple[str, ...]:
    """Every singular and plural that a class goes by, or those of a noun that is no class.

    >>> names_of("dog")
    ('dog', 'dogs', 'puppy', 'puppies', 'hound', 'hounds')
    """
    index = CLASS_INDEX.get(kind)
    nouns = ((kind, pluralize(kind)),) if index is None else CLASSES[index].nouns
    return tuple(dict.fromkeys(form for pair in nouns for form in pair))
