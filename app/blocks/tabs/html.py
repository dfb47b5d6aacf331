"""HTML from templates: one environment, in which whatever comes from outside stays text."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FunctionLoader, StrictUndefined
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from markupsafe import Markup, escape

from app.explain.heatmaps import colour

# The template languages of gr.HTML give these a meaning; as entities they are plain characters.
_SIGNS = str.maketrans({sign: f"&#{ord(sign)};" for sign in "{}$`\\"})
_BETWEEN_TAGS = re.compile(r"(^|>)\n\s*(?=<|$)")


class _OneLine(Extension):
    """Line breaks between tags are none of the HTML; between words they are spaces."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """Shortens the text of a template."""
        for token in stream:
            if token.type == "data":
                words = re.sub(r"\n\s*", " ", _BETWEEN_TAGS.sub(r"\1", token.value))
                token = Token(token.lineno, token.type, words)
            yield token


def render(name: str, **values: Any) -> Markup:
    """Fills a template.

    Args:
        name: "line" is `templates/line.html.jinja` beside this file, "search/tiles" is
            `search/templates/tiles.html.jinja`.
        values: what the template gets; text of theirs is escaped, unless it came from here.
    """
    return neutral(_environment.get_template(name).render(values))


def text(value: object) -> Markup:
    """A value as text that cannot be anything but text.

    >>> print(text("<b>{{x}}</b>"))
    &lt;b&gt;&#123;&#123;x&#125;&#125;&lt;/b&gt;
    """
    return neutral(escape(str(value)))


def neutral(safe: str) -> Markup:
    """HTML that is safe already, for gr.HTML to show as it is."""
    return Markup(safe.translate(_SIGNS))


def line(main: str, *details: str) -> Markup:
    """What is shown below: a main statement and smaller details."""
    return render("line", main=main, details=filter(None, details))


def problem(*sentences: str) -> Markup:
    """What went wrong and how to mend it, a paragraph for each sentence."""
    return render("problem", sentences=map(_capitalized, sentences))


def scale(low: str, high: str) -> Markup:
    """The colours of a map from the lowest to the highest value, with names for both."""
    return render("scale", low=low, high=high, stops=colour(np.linspace(0, 1, 8)).tolist())


def percent(share: float, digits: int = 1) -> str:
    """A share of 1 for people.

    >>> percent(0.1234)
    '12.3 %'
    """
    return f"{100 * share:.{digits}f} %"


def _capitalized(sentence: str) -> str:
    """A sentence with a capital letter, unless it begins with a file's or a repository's name."""
    first = sentence.split(maxsplit=1)[0] if sentence.strip() else ""
    return sentence if "." in first or "/" in first else sentence[:1].upper() + sentence[1:]


def _source(name: str) -> tuple[str, str, None] | None:
    folder, _, file = name.rpartition("/")
    path = Path(__file__).parent / folder / "templates" / f"{file}.html.jinja"
    return (path.read_text("utf-8"), str(path), None) if path.is_file() else None


_environment = Environment(
    autoescape=True,
    undefined=StrictUndefined,
    loader=FunctionLoader(_source),
    extensions=[_OneLine],
    cache_size=-1,
)
_environment.filters["percent"] = percent
