"""The object classes of the scenes world: names, synonyms, glyphs, colours.

No surface form belongs to two classes, and none occurs inside another class's form, so that the
words of a caption identify classes without doubt (tested).
"""

from dataclasses import dataclass
from functools import cached_property

_TABLES: dict[tuple[str, bool], str] = {
    ("animals", False): """
dog: 🐶🐕: puppy, hound; cat: 🐱🐈: kitten, kitty; mouse: 🐭🐁; rabbit: 🐰🐇: bunny; fox: 🦊;
bear: 🐻; panda: 🐼; koala: 🐨; tiger: 🐯🐅; lion: 🦁; leopard: 🐆: cheetah; cow: 🐮🐄;
pig: 🐷🐖: piglet; frog: 🐸: toad; monkey: 🐵🐒; gorilla: 🦍: ape; chicken: 🐔🐓; chick: 🐤🐥🐣;
penguin: 🐧; duck: 🦆; swan: 🦢; flamingo: 🦩; peacock: 🦚; wolf: 🐺; horse: 🐴🐎: pony;
unicorn: 🦄; snail: 🐌; spider: 🕷; turtle: 🐢: tortoise; snake: 🐍: serpent; lizard: 🦎: gecko;
octopus: 🐙; lobster: 🦞; crab: 🦀; fish: 🐟🐠; dolphin: 🐬; whale: 🐳🐋; shark: 🦈;
crocodile: 🐊: alligator; zebra: 🦓; elephant: 🐘; rhino: 🦏: rhinoceros; camel: 🐪🐫;
giraffe: 🦒; kangaroo: 🦘; sheep: 🐑🐏; deer: 🦌: stag; hedgehog: 🦔; dinosaur: 🦕🦖""",
    ("animals", True): """
parrot: 🦜; eagle: 🦅: hawk; owl: 🦉; bat: 🦇; bee: 🐝: honeybee; butterfly: 🦋;
ladybug: 🐞: ladybird""",
    ("people", False): """
baby: 👶: infant; clown: 🤡; santa: 🎅: santa claus; wizard: 🧙: sorcerer; ninja: 🥷; dancer: 💃;
builder: 👷: construction worker; guard: 💂""",
    ("food", False): """
apple: red=🍎 green=🍏; pear: 🍐; tangerine: 🍊: mandarin; lemon: 🍋; banana: 🍌; watermelon: 🍉;
bunch of grapes: 🍇; strawberry: 🍓; pineapple: 🍍; eggplant: 🍆: aubergine; avocado: 🥑;
chili pepper: 🌶; carrot: 🥕; mushroom: 🍄: toadstool; loaf of bread: 🍞; croissant: 🥐;
pretzel: 🥨; wedge of cheese: 🧀: piece of cheese; burger: 🍔: hamburger, cheeseburger;
box of fries: 🍟; pizza: 🍕: slice of pizza; taco: 🌮; box of popcorn: 🍿; ice cream: 🍦🍨;
donut: 🍩: doughnut; cookie: 🍪: biscuit; cake: 🎂🍰: birthday cake; cupcake: 🧁: muffin;
lollipop: 🍭; cup of coffee: ☕; mug of beer: 🍺: glass of beer""",
    ("vehicles", False): """
car: red=🚗 blue=🚗@215 green=🚗@120: automobile; taxi: 🚕: cab; bus: 🚌: coach; ambulance: 🚑;
fire engine: 🚒; truck: 🚚🚛: lorry; tractor: 🚜; bicycle: 🚲: bike; motorcycle: 🏍: motorbike;
scooter: 🛵: moped; train: 🚂: locomotive; sailboat: ⛵: sailing boat; ship: 🚢🛳: cruise ship""",
    ("vehicles", True): """
plane: ✈🛩: airplane, aeroplane; helicopter: 🚁: chopper; rocket: 🚀: spaceship;
ufo: 🛸: flying saucer""",
    ("buildings", False): """
house: 🏠: cottage; castle: 🏰: palace; church: ⛪: chapel; tent: ⛺; ferris wheel: 🎡""",
    ("plants", False): """
tree: 🌳🌲; palm: 🌴; cactus: 🌵; sunflower: 🌻; rose: 🌹; tulip: pink=🌷 purple=🌷@280;
maple leaf: 🍁""",
    ("sports", False): """
soccer ball: ⚽: football; basketball: 🏀; baseball: ⚾; tennis racket: 🎾; skateboard: 🛹;
boxing glove: 🥊; trophy: 🏆; dartboard: 🎯: bullseye""",
    ("music", False): """
guitar: 🎸; violin: 🎻: fiddle; trumpet: 🎺; saxophone: 🎷: sax; drum: 🥁; piano: 🎹: keyboard;
microphone: 🎤: mic; bell: 🔔""",
    ("things", False): """
book: red=📕 green=📗 blue=📘 orange=📙; umbrella: purple=☂@280 red=☂@0 blue=☂@215 green=☂@120;
shirt: blue=👕 pink=👕@350 purple=👕@280: tee shirt; present: 🎁: gift; key: 🔑; alarm clock: ⏰;
camera: 📷📸; laptop: 💻: computer; television: 📺: tv; light bulb: 💡: lightbulb;
backpack: red=🎒 blue=🎒@215 green=🎒@120: rucksack, schoolbag; suitcase: 🧳; crown: 👑;
top hat: 🎩; sneaker: 👟: running shoe; anchor: ⚓; robot: 🤖; snowman: ⛄☃;
pumpkin: 🎃: jack-o-lantern; diamond: 💎: gem; chair: 🪑; sofa: 🛋: couch; traffic light: 🚦🚥;
magnet: 🧲""",
    ("things", True): """
balloon: red=🎈 blue=🎈@215 green=🎈@120 purple=🎈@280;
heart: red=❤ blue=💙 green=💚 yellow=💛 purple=💜; kite: 🪁; ghost: 👻""",
}
"""By group, and by whether its classes may float in the sky: "name: glyphs: synonyms; ...".

Glyphs are a string of emoji, each another look of the class, or "colour=emoji" and
"colour=emoji@hue" entries, where the hue (degrees) replaces the glyph's dominant hue. Classes of
the second kind have an exact colour in the truth. Synonyms are optional.
"""

_IRREGULAR_PLURALS = {
    **{"mouse": "mice", "wolf": "wolves", "snowman": "snowmen", "fish": "fish", "deer": "deer"},
    **{"sheep": "sheep", "octopus": "octopuses", "cactus": "cacti", "loaf": "loaves"},
}


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
    """One kind of object that a scene can hold.

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

    @cached_property
    def nouns(self) -> tuple[tuple[str, str], ...]:
        """Every (singular, plural) pair, the canonical one first."""
        return tuple((noun, pluralize(noun)) for noun in (self.name, *self.synonyms))

    @cached_property
    def colors(self) -> tuple[str, ...]:
        """The colours this class comes in; empty if colour is not part of its truth."""
        return tuple(dict.fromkeys(look.color for look in self.looks if look.color))


def pluralize(noun: str) -> str:
    """Returns the plural of a singular noun.

    >>> [pluralize(noun) for noun in ("puppy", "fox", "monkey", "loaf of bread")]
    ['puppies', 'foxes', 'monkeys', 'loaves of bread']
    """
    head, of, rest = noun.partition(" of ")
    if of:
        return pluralize(head) + of + rest
    if noun in _IRREGULAR_PLURALS:
        return _IRREGULAR_PLURALS[noun]
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def _parse_look(entry: str) -> Look:
    color, _, rest = entry.partition("=")
    glyph, _, hue = rest.partition("@")
    return Look(glyph, color, float(hue) if hue else None)


def _parse_class(entry: str, group: str, aloft: bool) -> ObjectClass:
    name, glyphs, *synonyms = (part.strip() for part in entry.split(":"))
    colored = "=" in glyphs
    looks = map(_parse_look, glyphs.split()) if colored else map(Look, glyphs)
    return ObjectClass(
        name, group, tuple(looks), tuple(synonyms[0].split(", ")) if synonyms else (), aloft
    )


CLASSES: tuple[ObjectClass, ...] = tuple(
    _parse_class(entry, group, aloft)
    for (group, aloft), table in _TABLES.items()
    for entry in table.split(";")
)
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
