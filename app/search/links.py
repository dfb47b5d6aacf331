"""Links that hold what a tab shows: /?tab=search&q=a+dog&method=mvam&only=setting:beach.

q holds the words as typed, `like` the id of an image of the collection, each `more` and `less` that
of an example, method a method or an ensemble, each `only` one value of a fact to filter by, and
`image` the id of the image that is open. A link into Views, /?tab=views&image=3&method=mvam&q=dog,
holds the id of the image that is looked at; one into Compare,
/?tab=compare&q=a+dog&columns=mvam&columns=pvse&ranks=10, its columns.
The page itself notes the tab. What was uploaded cannot be in a link.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode

from app.search.filters import Filters
from app.search.query import checked
from app.search.questions import MAX_EXAMPLES, Question
from app.search.retriever import Retriever

MAX_LINK = 2000  # characters; longer addresses are cut or refused on their way
_MOST_VALUES = 64  # to filter by, and columns
_LONGEST_COLUMN = 400  # characters
_WHOLE = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class Link:
    """What a link asks for.

    Attributes:
        question: a sample where there is none.
        method: a method or an ensemble of the pack; empty where it names none.
        filters: only images that satisfy them are wanted.
        image_id: of the image that is open; None for none.
        problems: sentences about what in it made no sense and was left out.
    """

    question: Question = field(default_factory=Question)
    method: str = ""
    filters: Filters = field(default_factory=Filters)
    image_id: int | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompareLink:
    """What a link into Compare asks for.

    Attributes:
        question: a sample where there is none.
        columns: as written; whoever asks them checks them.
        ranks: how many each lists; 0 where it does not say.
        problems: sentences about what in it made no sense and was left out.
    """

    question: Question = field(default_factory=Question)
    columns: tuple[str, ...] = ()
    ranks: int = 0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class LookLink:
    """What a link into Views asks for.

    Attributes:
        image_id: an image of the collection; None where it names none.
        method: a method of the pack; empty where it names none.
        words: a sentence to look at beside the image; None where it does not say.
        problems: sentences about what in it made no sense and was left out.
        token: another one each time it is asked for within the page; empty in an address.
    """

    image_id: int | None = None
    method: str = ""
    words: str | None = None
    problems: tuple[str, ...] = ()
    token: str = ""


def parts(address: object) -> tuple[list[tuple[str, str]], str]:
    """An address as the page sends it: its names and values, and what stands after "#".

    >>> parts("?q=a+dog#3f")
    ([('q', 'a dog')], '3f')
    """
    asked, _, key = str(address).removeprefix("?").partition("#")
    try:
        return parse_qsl(asked, keep_blank_values=True), key
    except ValueError:  # no text at all
        return [], key


def write(question: Question, method: str, filters: Filters, image_id: int | None = None) -> str:
    """The part of an address after "?"; empty where no link can hold the question.

    >>> asked = Question("words", words="a dog & a cat")
    >>> write(asked, "mvam", Filters({"time": ["day"]}))
    'q=a+dog+%26+a+cat&method=mvam&only=time%3Aday'
    """
    if question.kind in ("sample", "upload"):
        return ""
    named = [*_asked(question), ("method", method)]
    wanted = filters.wanted.items()
    named += [("only", f"{fact}:{value}") for fact, values in wanted for value in values]
    return _encode(named + ([] if image_id is None else [("image", str(image_id))]))


def write_compare(question: Question, columns: Iterable[str], ranks: int) -> str:
    """The same for Compare.

    >>> write_compare(Question("words", "a dog"), ["mvam", "pvse"], 10)
    'q=a+dog&columns=mvam&columns=pvse&ranks=10'
    """
    if question.kind in ("sample", "upload"):
        return ""
    named = [*_asked(question), *(("columns", str(column)) for column in columns)]
    return _encode([*named, ("ranks", str(int(ranks)))])


def write_look(image_id: int | None, method: str, words: str) -> str:
    """The same for Views; empty where no link can hold it, such as an uploaded image.

    >>> write_look(3, "mvam", "a  dog")
    'image=3&method=mvam&q=a+dog'
    """
    if image_id is None:
        return ""
    return _encode([("image", str(image_id)), ("method", method), ("q", " ".join(words.split()))])


def read(named: Iterable[tuple[str, str]], retriever: Retriever) -> Link:
    """Reads a link, whoever wrote it.

    Args:
        named: the names and values of an address, in order; the last of a name counts, save for
            `only`. Other names are left to others.
        retriever: the pack it is asked of.
    """
    named = list(named)
    last, only = {}, []
    for name, value in named:
        last[name] = value
        if name == "only":
            only.append(value)
    reader = _Reader(retriever)
    question, method = reader.question(last), reader.method(last.get("method", ""))
    question = reader.examples(question, named)
    image = reader.image(last["image"]) if "image" in last else None
    return Link(question, method, reader.filters(only), image, tuple(reader.problems))


def read_compare(named: Iterable[tuple[str, str]], retriever: Retriever, most: int) -> CompareLink:
    """Reads a link into Compare, whoever wrote it; see `read`.

    Args:
        named: the names and values of an address, in order; the last of a name counts, save for
            `columns`.
        retriever: the pack it is asked of.
        most: the largest number of ranks.
    """
    named = list(named)
    last, reader = dict(named), _Reader(retriever)
    columns = [value[:_LONGEST_COLUMN] for name, value in named if name == "columns"]
    question, ranks = reader.question(last), reader.ranks(last.get("ranks", ""), most)
    return CompareLink(question, tuple(columns[:_MOST_VALUES]), ranks, tuple(reader.problems))


def read_look(named: Iterable[tuple[str, str]], retriever: Retriever) -> LookLink:
    """Reads a link into Views, whoever wrote it; what it says of an image that is none is left out.

    Args:
        named: the names and values of an address, in order; the last of a name counts.
        retriever: the pack it is asked of.
    """
    last, reader = dict(named), _Reader(retriever)
    image_id = reader.image(last["image"]) if "image" in last else None
    words = None if reader.problems or "q" not in last else reader.words(last["q"])
    method = reader.method(last.get("method", ""))
    # Views looks with one method at a time.
    return LookLink(image_id, method.partition("+")[0], words, tuple(reader.problems))


def _asked(question: Question) -> list[tuple[str, str]]:
    """The words and the image of a question."""
    words = " ".join(question.words.split())
    named = [("q", words)] if words else []
    named += [("like", str(question.image_id))] if question.kind == "image" else []
    examples = (("more", question.more), ("less", question.less))
    return named + [(name, str(one)) for name, images in examples for one in images]


def _encode(named: list[tuple[str, str]]) -> str:
    link = urlencode(named)
    return link if len(link) <= MAX_LINK else ""


class _Reader:
    """Reads a link's parts one by one, and notes what makes no sense."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever
        self.problems: list[str] = []

    def question(self, last: dict[str, str]) -> Question:
        words = self.words(last.get("q", ""))
        like = self.image(last["like"]) if last.get("like") else None
        if like is not None:
            return Question("image", words=words, image_id=like)
        return Question("words", words=words) if words.strip() else Question()

    def examples(self, question: Question, named: list[tuple[str, str]]) -> Question:
        for name in ("more", "less"):
            given = [value for key, value in named if key == name][: MAX_EXAMPLES + 1]
            known = [one for one in map(self.image, dict.fromkeys(given)) if one is not None]
            try:
                question = question.with_examples(name == "more", *known) if known else question
            except ValueError as error:
                self._note(str(error))
        return question

    def words(self, words: str) -> str:
        if words.strip():
            try:
                checked(words)
            except ValueError as error:
                self._note(str(error))
                return ""
        return words

    def image(self, text: str) -> int | None:
        try:
            image_id = int(text) if _WHOLE.fullmatch(text) else -1
            index = self._retriever.index
            if image_id >= index.files and not index.complete:  # of a clip, it may not be read yet
                file_id = image_id % index.files
                image_id = image_id if file_id in index.clips else file_id
            return self._retriever.image(image_id).image_id
        except ValueError:
            most = len(self._retriever.collection.images) - 1
            self._note(f'"{text[:40]}" is no picture; ids go from 0 to {most}')
            return None

    def method(self, spec: str) -> str:
        if not spec:
            return ""
        try:
            return "+".join(self._retriever.methods.names(spec[:400]))
        except ValueError as error:
            self._note(str(error))
            return ""

    def ranks(self, text: str, most: int) -> int:
        count = int(text) if _WHOLE.fullmatch(text) else 0
        if not text or 1 <= count <= most:
            return count
        self._note(f'ranks is "{text[:40]}", but must be a whole number from 1 to {most}')
        return 0

    def filters(self, only: list[str]) -> Filters:
        usable: dict[str, list[str]] = {}
        if len(only) > _MOST_VALUES:
            self._note(f"it filters by {len(only)} values, more than {_MOST_VALUES}")
        for part in only[:_MOST_VALUES]:
            fact, _, value = part.partition(":")
            try:
                Filters.of(self._retriever.collection, {fact: [value]})
            except ValueError as error:
                self._note(str(error))
            else:
                usable.setdefault(fact, []).append(value)
        return Filters.of(self._retriever.collection, usable)

    def _note(self, problem: str) -> None:
        self.problems.append(f"a part of the link was left out: {problem}")
