"""What the Search tab's templates get: results, the image looked at, small maps, history."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from markupsafe import Markup
from PIL import Image

from app.blocks.tabs.html import render, scale
from app.blocks.tabs.images import Listed, at
from app.explain.heatmaps import data_uri
from app.gallery.near_duplicates import fingerprint, first_alike
from app.search.answers import Answer
from app.search.hits import CaptionHit
from app.search.query import MINUS
from app.search.questions import Question
from export.pack.calibration import strength
from models import Method

_FEW = 4  # views whose small maps have room for "View 1"


@dataclass(frozen=True)
class Result:
    """One image that was found, or one of a sample, which has rank 0.

    Attributes:
        image_id: of the collection; what choosing it sends.
        image: what is known about it.
        spec: the method or ensemble that found it.
        rank: 1 for the best.
        score: the method's.
        view: which view won, counted from 0; None where no single one did.
        several: an image has several views that differ, of which one can win.
        satisfies: it is known to satisfy the question.
        terms: what the query asked for, term by term.
        won: for each method, the view that won for each of the terms.
        words: what to look for in it; may be empty.
        question: what it answers.
        alike: the image shown before that looks nearly the same, and under which it is folded.
        ratio: width / height of its place; a longer image is seen whole in it.
        probability: that it satisfies the question; None where that is not known.
    """

    image_id: int
    image: Listed
    spec: str = ""
    rank: int = 0
    score: float = 0.0
    view: int | None = None
    several: bool = False
    satisfies: bool = False
    terms: tuple[str, ...] = ()
    won: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    words: str = ""
    question: Question = field(default_factory=Question)
    alike: int | None = None
    ratio: float = 1.0
    probability: float | None = None

    @property
    def strength(self) -> str:
        """How sure its method is of it, in a word; empty where that is not known."""
        return "" if self.probability is None else strength(self.probability)

    @property
    def badge(self) -> str:
        """The view that won, where that says something."""
        return f"view {self.view + 1}" if self.several and self.view is not None else ""

    @property
    def name(self) -> str:
        """What is read aloud for it."""
        moment = self.image.moment
        if not self.rank:
            return self.image.words if moment is None else f"{self.image.words}, clip"
        won = f", {self.badge} won" if self.badge else ""
        mark = ", satisfies the caption" if self.satisfies else ""
        sure = f", {self.strength} match" if self.strength else ""
        clip = "" if moment is None else f", clip, best {at(moment)}"
        return f"{self.rank} · {self.score:.3f} · {self.image.words}{won}{mark}{sure}{clip}"


@dataclass(frozen=True)
class Layer:
    """A small map to choose: a view of a method, or the plain image.

    Attributes:
        value: what choosing it sends.
        name: what it is.
        short: what there is room for beneath it.
        map: what it looks like.
        won: the view won.
    """

    value: str
    name: str
    short: str
    map: Image.Image
    won: bool = False

    @property
    def address(self) -> str:
        """Holds the map itself."""
        return data_uri(self.map, "WEBP")


def answer_line(answer: Answer, meant: Sequence[tuple[str, str]] = ()) -> Markup:
    """What was found, how the question was read, and smaller remarks.

    Args:
        answer: what was found.
        meant: words that may be meant by unknown ones, and where each is asked.
    """
    reading = [(part, part.startswith(MINUS)) for part in answer.reading]
    return render("search/answer", answer=answer, reading=reading, meant=meant)


def tiles(
    found: Sequence[Result], opened: int | None = None, *, more: bool = False, facts: str = ""
) -> Markup:
    """The images, best first, as buttons in reading order.

    Args:
        found: the images.
        opened: the id of the one that is open, if any.
        more: there are more of them, for which the visitor may ask.
        facts: evidence of the images, where they follow others; see `evidence.more`.
    """
    return render("search/tiles", found=found, opened=opened, more=more, facts=facts)


def folded(before: Sequence[Result], found: Sequence[Result]) -> list[Result]:
    """Images, each told under which other it is folded, if under any.

    Args:
        before: images that are shown already.
        found: images that follow them.
    """
    shown = [result for result in before if result.alike is None]
    every = [*shown, *found]
    paths = [result.image.thumbnail for result in every]
    firsts = first_alike([fingerprint(path) for path in paths if path])
    alike = [
        None if first == place else every[first].image_id for place, first in enumerate(firsts)
    ]
    return [
        replace(result, alike=one) for result, one in zip(found, alike[len(shown) :], strict=True)
    ]


def captions(title: str, found: Sequence[CaptionHit | str]) -> Markup:
    """Captions, best first and with their scores where they have any; nothing for none."""
    return render("search/captions", title=title, found=found) if found else Markup()


def invitation() -> Markup:
    """What the panel says before an image was chosen."""
    return render("search/invitation")


def head(file: str, facts: Iterable[str], path: str = "") -> Markup:
    """The head of the panel that looks inside one image; `path` is where it lies, if known."""
    return render("search/head", file=file, facts=facts, path=path)


def layers(
    groups: Mapping[str, Sequence[Layer]], chosen: str, hidden: Sequence[str] = ()
) -> Markup:
    """Small maps to choose from.

    Args:
        groups: for each heading its maps; a single group needs none.
        chosen: the value of the one that is shown.
        hidden: values of maps without a small one, which a script chooses.
    """
    return render("search/layers", groups=groups, chosen=chosen, hidden=hidden, few=_FEW)


def view_names(views: int, view: int) -> tuple[str, str]:
    """A view's name, and as much of it as there is room for."""
    if views == 1:
        return "Attention", "Attention"
    return f"View {view + 1}", f"View {view + 1}" if views <= _FEW else str(view + 1)


def legend(label: str) -> Markup:
    """The colour scale and the sentence that says what the map is."""
    return render("search/legend", scale=scale("none", "most"), label=label)


def lit_legend(top: float, sentence: str) -> Markup:
    """What is lit, up to which value of the score, and the sentence that says it in words."""
    return render("search/lit_legend", top=f"{top:.3f}", sentence=sentence)


def history(questions: Sequence[Question]) -> Markup:
    """Earlier questions, to be asked again."""
    return render("search/history", questions=questions)


def about(methods: Mapping[str, Method]) -> Markup:
    """What a visitor is looking at, in plain words, and whose ideas it shows."""
    return render("search/about", methods=methods.values())
