"""The part of the tab that lists earlier questions, of this visit and of those before it."""

from typing import Any

import gradio as gr

from app.blocks.tabs.events import connect, on_refresh
from app.blocks.tabs.search import view
from app.blocks.tabs.widgets import choosable, script
from app.search.questions import Question, recall


class History:
    """Lays itself out where it is made, within the Blocks being built.

    Attributes:
        questions: holds the questions, newest first.
        chosen: its `select` event comes when one is to be asked again; its value is the key.
        outputs: the components that `show` updates.
    """

    def __init__(self) -> None:
        self.questions = gr.State(())
        with gr.Accordion("Earlier questions", open=False, elem_id="pv-earlier") as self._drawer:
            drawn = view.history(())
            self._list, self.chosen = choosable("search/history", "pv-history", drawn)
        recalls = script("search/recall")
        self._recalled = gr.HTML([], html_template="", js_on_load=recalls, visible="hidden")
        self.outputs = [self.questions, self._recalled, self._list, self._drawer]
        on_refresh([(self._list.forget, "questions")], self._forget, [], self.outputs, "forget")
        earlier, recalled = [self.questions, self._recalled], self._recalled.recall
        connect(recalled, self._recall, earlier, self.outputs, "search_recall", question=True)

    def show(self, questions: tuple[Question, ...]) -> dict[Any, Any]:
        """Updates that list questions."""
        label = f"Earlier questions ({len(questions)})" if questions else "Earlier questions"
        return {
            self.questions: questions,
            self._recalled: [q.words for q in questions if q.kind == "words" and not q.own],
            self._list: view.history(questions),
            self._drawer: gr.Accordion(label=label),
        }

    def _forget(self) -> dict[Any, Any]:
        """Empties the list."""
        return self.show(())

    def _recall(self, questions: tuple[Question, ...], words: Any) -> dict[Any, Any]:
        """Lists what was asked in earlier visits, too."""
        return self.show(recall(tuple(questions), words))
