"""Links that hold what a tab shows: /?tab=search&q=a+dog&method=mvam&k=12&only=setting:beach.

q holds the words as typed, `like` the id of an image of the collection, method a method or an
ensemble, k how many images, and each `only` one value of a fact to filter by. A link into Views,
/?tab=views&image=3&method=mvam&q=a+dog, holds the id of the image that is looked at. The page
itself notes the tab. What was uploaded cannot be in a link.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlencode

from app.search.filters import Filters
from app.search.query import checked
from app.search.questions import Question
from app.search.retriever import Retriever

MAX_LINK = 2000  # characters; longer addresses are cut or refused on their way
_MOST_VALUES = 64  # to filter by
_WHOLE = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class Link:
    """What a link asks for.

    Attributes:
        question: a sample where there is none.
        method: a method or an ensemble of the pack; empty where it names none.
        count: how many images; 0 where it does not say.
        filters: only images that satisfy them are wanted.
        problems: sentences about what in it made no sense and was left out.
    """

    question: Question = field(default_factory=Question)
    method: str = ""
    count: int = 0
    filters: Filters = field(default_factory=Filters)
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


def write(question: Question, method: str, count: int, filters: Filters) -> str:
    """The part of an address after "?"; empty where no link can hold the question.

    >>> asked = Question("words", words="a dog & a cat")
    >>> write(asked, "mvam", 12, Filters({"time": ["day"]}))
    'q=a+dog+%26+a+cat&method=mvam&k=12&only=time%3Aday'
    """
    if question.kind in ("sample", "upload"):
        return ""
    named: list[tuple[str, str]] = []
    if words := " ".join(question.words.split()):
        named.append(("q", words))
    if question.kind == "image":
        named.append(("like", str(question.image_id)))
    named += [("method", method), ("k", str(int(count)))]
    wanted = filters.wanted.items()
    named += [("only", f"{fact}:{value}") for fact, values in wanted for value in values]
    return _encode(named)


def write_look(image_id: int | None, method: str, words: str) -> str:
    """The same for Views; empty where no link can hold it, such as an uploaded image.

    >>> write_look(3, "mvam", "a  dog")
    'image=3&method=mvam&q=a+dog'
    """
    if image_id is None:
        return ""
    return _encode([("image", str(image_id)), ("method", method), ("q", " ".join(words.split()))])


def read(named: Iterable[tuple[str, str]], retriever: Retriever, most: int) -> Link:
    """Reads a link, whoever wrote it.

    Args:
        named: the names and values of an address, in order; the last of a name counts, save for
            `only`. Other names are left to others.
        retriever: the pack it is asked of.
        most: the largest number of images that may be asked for.
    """
    last, only = {}, []
    for name, value in named:
        last[name] = value
        if name == "only":
            only.append(value)
    reader = _Reader(retriever, most)
    question = reader.question(last)
    method, count = reader.method(last.get("method", "")), reader.count(last.get("k", ""))
    return Link(question, method, count, reader.filters(only), tuple(reader.problems))


def read_look(named: Iterable[tuple[str, str]], retriever: Retriever) -> LookLink:
    """Reads a link into Views, whoever wrote it; without an image it asks for nothing.

    Args:
        named: the names and values of an address, in order; the last of a name counts.
        retriever: the pack it is asked of.
    """
    last = dict(named)
    if "image" not in last:
        return LookLink()
    reader = _Reader(retriever, 1)
    image_id = reader.image(last["image"])
    words = None if image_id is None or "q" not in last else reader.words(last["q"])
    method = reader.method(last.get("method", ""))
    # Views looks with one method at a time.
    return LookLink(image_id, method.partition("+")[0], words, tuple(reader.problems))


def _encode(named: list[tuple[str, str]]) -> str:
    link = urlencode(named)
    return link if len(link) <= MAX_LINK else ""


class _Reader:
    """Reads a link's parts one by one, and notes what makes no sense."""

    def __init__(self, retriever: Retriever, most: int) -> None:
        self._retriever = retriever
        self._most = most
        self.problems: list[str] = []

    def question(self, last: dict[str, str]) -> Question:
        words = self.words(last.get("q", ""))
        like = self.image(last["like"]) if last.get("like") else None
        if like is not None:
            return Question("image", words=words, image_id=like)
        return Question("words", words=words) if words.strip() else Question()

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

    def count(self, text: str) -> int:
        if not text:
            return 0
        count = int(text) if _WHOLE.fullmatch(text) else 0
        if not 1 <= count <= self._most:
            self._note(f'k is "{text[:40]}", but must be a whole number from 1 to {self._most}')
            return 0
        return count

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
