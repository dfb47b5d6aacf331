"""The Benchmark tab's widgets and what they do."""

from pathlib import Path
from typing import Any

import gradio as gr

from app.blocks.tabs.benchmark import view
from app.blocks.tabs.benchmark.curves import trainings
from app.blocks.tabs.events import Event, connect, on_refresh
from app.blocks.tabs.html import problem
from app.blocks.tabs.session import Session
from app.packs import ablations, candidates, curves, speed
from app.packs.measured import table
from app.packs.speed import Speed

_SORT = (Path(__file__).parent / "table.js").read_text("utf-8")


class BenchmarkTab:
    """Widgets as attributes, handlers as methods; every handler answers with {widget: update}."""

    def __init__(self, session: Session, selected: Event) -> None:
        self._session = session
        self._selected = selected
        self._measured = gr.State(None)  # (key of a pack, its Speed here), or None
        with gr.Accordion("What am I looking at?", open=False, elem_id="pv-bench-about"):
            gr.HTML(view.explanation())
        # The table is there from the start, so that little moves when a visitor's own pack is
        # shown. The plot comes when the tab is opened: what draws it takes half a second to load.
        first = session.packs.first
        info = first.info
        numbers = table(first, speed.recorded(info))
        self._results = gr.HTML(view.results(numbers), js_on_load=_SORT, elem_id="pv-bench-results")
        self._plot = gr.HTML(elem_id="pv-bench-plot")
        self._time = gr.Button("Measure speed here", size="sm", elem_id="pv-bench-time")
        self._message = gr.HTML(elem_id="pv-bench-message")
        self._ablation = gr.Dropdown(
            [], label="What happens when a method is varied", elem_id="pv-bench-ablation"
        )
        self._ablations = gr.HTML(elem_id="pv-bench-ablations")
        with gr.Accordion(
            "How a query slows down as pictures are added", open=False, elem_id="pv-bench-growth"
        ) as self._growth:
            self._candidates = gr.HTML(elem_id="pv-bench-candidates")
        with gr.Accordion(
            "How the methods were trained", open=False, elem_id="pv-bench-training"
        ) as self._training:
            self._curves = gr.HTML(elem_id="pv-bench-curves")
        self._connect()

    def _connect(self) -> None:
        pack = self._session.pack
        shown = [self._results, self._plot, self._message, self._training, self._curves]
        shown += [self._growth, self._candidates]
        swapped, selected = (pack.change, "swap"), (self._selected, "select")
        numbers, everything = [pack, self._measured], [*shown, self._time]
        # in turn with measuring, whose numbers it would replace by those of before
        refreshed = [selected, swapped]
        on_refresh(refreshed, self.refresh, numbers, everything, "benchmark", in_turn=True)
        varied = [self._ablation, self._ablations]
        on_refresh([selected, swapped], self.vary, [pack, self._ablation], varied, "benchmark_vary")
        chosen = [pack, self._ablation]
        connect(self._ablation.input, self.vary, chosen, varied, "benchmark_ablation")
        timed, measured = self._time.click, [self._measured, *shown]
        name = "benchmark_speed"
        connect(timed, self.measure, [pack], measured, name, line=self._plot, question=True)

    def refresh(self, key: str, measured: tuple[str, Speed] | None) -> dict[Any, Any]:
        """Shows the numbers of the visitor's pack."""
        retriever = self._session.retriever(key)
        found = speed.recorded(retriever.info)
        if measured is not None and measured[0] == key:
            found = measured[1]
        numbers = table(retriever, found)
        captions = bool(retriever.collection.captions)
        trained, growth = curves.load(retriever.info), candidates.recorded(retriever.info)
        return {
            self._results: view.results(numbers),
            self._plot: view.accuracy_and_speed(numbers, found, captions=captions),
            self._growth: gr.Accordion(visible=growth is not None),
            self._candidates: view.against_candidates(growth),
            self._message: "",
            self._time: gr.Button(interactive=captions),
            self._training: gr.Accordion(visible=bool(trained)),
            self._curves: trainings(trained, self._titles(key)),
        }

    def vary(self, key: str, name: str | None) -> dict[Any, Any]:
        """Shows the ablation that was chosen of the visitor's pack, and offers the others."""
        tables, problems = ablations.load(self._session.retriever(key).info)
        chosen = [table for table in tables if table.name == name]
        choices = [(table.title, table.name) for table in tables]
        value = name if chosen else None
        return {
            self._ablation: gr.Dropdown(choices, value=value, visible=bool(tables)),
            self._ablations: view.ablation_tables(chosen, problems),
        }

    def measure(self, key: str) -> dict[Any, Any]:
        """Times the visitor's pack on this machine."""
        try:
            found = speed.measure(self._session.retriever(key))
        except ValueError as error:
            return {self._message: problem(str(error))}
        shown = self.refresh(key, (key, found))
        del shown[self._time]
        return {self._measured: (key, found), **shown}

    def _titles(self, key: str) -> dict[str, str]:
        methods = self._session.retriever(key).methods
        return {name: method.title for name, method in methods.items()}
