"""The part of the tab that shows the images found: the grid, its evidence, what was picked."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.blocks import Block
from markupsafe import Markup

from app.blocks.tabs.events import connect
from app.blocks.tabs.html import line
from app.blocks.tabs.saving import on_save
from app.blocks.tabs.search import evidence, export, view
from app.blocks.tabs.search.evidence import Hits
from app.blocks.tabs.search.inspector import Inspector
from app.blocks.tabs.search.question import Inputs, filters_of
from app.blocks.tabs.search.results import chosen_of, has_more, results
from app.blocks.tabs.search.view import Result
from app.blocks.tabs.session import Session
from app.blocks.tabs.widgets import choosable, script
from app.search.answers import Answer, answer
from app.search.questions import Question
from app.search.retriever import MAX_HITS, Retriever

PAGE = 40  # images of an answer that come at once; more come as the visitor scrolls


class Grid:
    """Lays itself out where it is made, within the Blocks being built.

    Attributes:
        shown: holds the `Result` of each image in it.
        picked: the ids of those that were picked.
        likes: the buttons that ask for more like these, and for less, by whether more.
        outputs: the components that `show` updates.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.shown = gr.State([])
        self._hits = gr.State(None)  # those of them that answer a question
        self._evidence = gr.HTML(
            evidence.INVITATION, elem_id="pv-evidence", js_on_load=evidence.SCRIPT
        )
        with gr.Row(elem_id="pv-picked"):
            self._saves = {
                kind: gr.Button(label, size="sm", min_width=80, scale=0)
                for kind, label in export.KINDS.items()
            }
            self.likes = {
                more: gr.Button(label, size="sm", min_width=120, scale=0)
                for more, label in ((True, "More like these"), (False, "Less like these"))
            }
        self._grid, self._tile = choosable("search/tiles", "pv-grid")
        picked = script("search/picked")
        self.picked = gr.HTML([], html_template="", js_on_load=picked, visible="hidden")
        self._file = gr.DownloadButton(visible="hidden")
        pages = script("search/pages")
        self._page = gr.HTML("", html_template="", js_on_load=pages, visible="hidden")
        self.outputs = [self.shown, self._hits, self._grid]

    def connect(self, current: gr.State, inputs: Sequence[Block], inspector: Inspector) -> None:
        """Connects what happens in the grid.

        Args:
            current: holds the present question.
            inputs: what `Inputs` is made of.
            inspector: opens the image that is clicked.
        """
        pack = self._session.pack
        connect(
            self._tile.select,
            partial(self._look, inspector),
            [pack, self.shown, self._tile],
            inspector.outputs,
            "inspect",
            line=inspector.head,
            question=True,
        )
        found = self._hits.change
        split = [pack, self._hits]
        connect(found, self._split, split, [self._evidence], "show_evidence", question=True)
        for kind, save in self._saves.items():
            given = [pack, self.shown, self.picked]
            on_save(save, partial(self._save, kind), given, self._file, f"search_{kind}")
        further = [pack, current, self.shown, *inputs]
        shown = [self._page, self.shown]
        connect(self._page.more, self._more, further, shown, "show_more", question=True)

    def show(
        self, retriever: Retriever, answered: Answer, method: str, opened: Result | None
    ) -> tuple[dict[Any, Any], str]:
        """Updates that fill the grid; images that are gone are left out.

        Args:
            retriever: of the pack.
            answered: the answer.
            method: that found it.
            opened: the image that is open; marked.

        Returns:
            Also what is wrong with the disk, where images are missing because of it.
        """
        places = range(len(answered.hits))
        found, trouble = results(retriever, self._session.meters, answered, places, method)
        current = opened.image_id if opened else None
        drawn = view.tiles(found, current, more=has_more(answered))
        grid = "" if trouble and not found else drawn
        return {self._grid: grid, self.shown: found, self._hits: Hits.of(found)}, trouble

    def _look(
        self, inspector: Inspector, key: str, shown: list[Result], image_id: Any
    ) -> dict[Any, Any]:
        """Opens the image that was clicked, unless the results were replaced since."""
        result = next((one for one in shown if one.image_id == image_id), None)
        return inspector.look(key, result)

    def _more(
        self, key: str, question: Question, shown: list[Result], *given: Any
    ) -> dict[Any, Any]:
        """Shows the next images of the present answer, with their evidence."""
        if not shown or not shown[0].rank:  # a sample has no more
            return {self._page: ""}
        retriever, spec, last = self._session.retriever(key), shown[0].spec, shown[-1].rank
        wanted = filters_of(retriever, Inputs.of(given).values)
        answered = answer(retriever, question, spec, min(last + PAGE, MAX_HITS), wanted)
        meters = self._session.meters
        there = {result.image_id for result in shown}  # others may have moved: images still come
        places = [
            p for p, hit in enumerate(answered.hits[last:], last) if hit.image_id not in there
        ]
        found, _ = results(retriever, meters, answered, places, spec, shown)
        facts = evidence.more(Hits.of(found), retriever)
        page = view.tiles(found, more=has_more(answered), facts=facts)
        return {
            self._page: page if found else Markup("<i>{}</i>").format(last),
            self.shown: [*shown, *found],
        }

    def _save(self, kind: str, key: str, shown: list[Result], picked: Any) -> str:
        """Makes a file of the images that were picked."""
        retriever, folder = self._session.retriever(key), Path(self._file.GRADIO_CACHE)
        private, chosen = self._session.packs.private, chosen_of(shown, picked)
        return str(export.write(kind, chosen, retriever, folder, private=private))

    def _split(self, key: str, hits: Hits | None) -> dict[Any, Any]:
        """Shows what the words of the question bring to each hit."""
        if hits is None:
            return {self._evidence: evidence.INVITATION}
        retriever = self._session.retriever(key)
        try:
            return {self._evidence: evidence.bar(hits, retriever)}
        except ValueError as error:
            return {self._evidence: line(str(error))}
