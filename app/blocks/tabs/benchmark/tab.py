"""The Benchmark tab's widgets and what they do."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gradio as gr

from app.blocks.tabs.benchmark import view
from app.blocks.tabs.benchmark.curves import trainings
from app.blocks.tabs.events import Event, connect, on_refresh
from app.blocks.tabs.html import line, problem
from app.blocks.tabs.session import Session
from app.packs import ablations, candidates, curves, speed
from app.packs.jobs import CancelledError
from app.packs.measured import table
from app.packs.rerun import Outcome, Runner, compare, measured_methods, obstacle
from app.packs.speed import Speed
from app.search.retriever import Retriever
from export.sessions import hardware

ALL = ""
_SORT = (Path(__file__).parent / "table.js").read_text("utf-8")
# it takes minutes of two processors
_PRIVATE = "a pack is measured again only where no other machine reaches the app"


class BenchmarkTab:
    """Widgets as attributes, handlers as methods; every handler answers with {widget: update}."""

    def __init__(self, session: Session, selected: Event) -> None:
        self._session = session
        self._selected = selected
        self._runner = Runner()
        self._measured = gr.State(None)  # (key of a pack, its Speed here), or None
        with gr.Accordion("What am I looking at?", open=False, elem_id="pv-bench-about"):
            gr.HTML(view.explanation())
        # The table is there from the start, so that little moves when a visitor's own pack is
        # shown. The plot comes when the tab is opened: what draws it takes half a second to load.
        first = session.packs.first
        info = first.info
        numbers = table(first, speed.recorded(info))
        self._results = gr.HTML(view.results(numbers), js_on_load=_SORT, elem_id="pv-bench-results")
        with gr.Row(elem_id="pv-bench-below"):
            with gr.Column(scale=5, min_width=320):
                self._plot = gr.HTML(elem_id="pv-bench-plot")
                self._time = gr.Button("Measure speed here", size="sm", elem_id="pv-bench-time")
                self._message = gr.HTML(elem_id="pv-bench-message")
            with gr.Column(scale=3, min_width=300, elem_id="pv-bench-run"):
                self._lay_out_run(obstacle(info))
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

    def _lay_out_run(self, reason: str) -> None:
        gr.HTML("<h2>Run it here</h2>", elem_classes="pv-run-head")
        self._method = gr.Dropdown([], label="Method", elem_id="pv-bench-method")
        with gr.Row():
            self._go = gr.Button("Run", variant="primary", min_width=96, elem_id="pv-bench-go")
            self._cancel = gr.Button(
                "Cancel", interactive=False, min_width=96, elem_id="pv-bench-cancel"
            )
        self._status = gr.HTML(view.invitation(reason), elem_id="pv-bench-status")

    def _connect(self) -> None:
        pack = self._session.pack
        shown = [self._results, self._plot, self._message, self._training, self._curves]
        shown += [self._growth, self._candidates]
        opened, swapped = (self._session.blocks.load, "open"), (pack.change, "swap")
        selected = (self._selected, "select")
        numbers, everything = [pack, self._measured], [*shown, self._time]
        # in turn with measuring, whose numbers it would replace by those of before
        refreshed = [selected, swapped]
        on_refresh(refreshed, self.refresh, numbers, everything, "benchmark", in_turn=True)
        varied = [self._ablation, self._ablations]
        on_refresh([selected, swapped], self.vary, [pack, self._ablation], varied, "benchmark_vary")
        chosen = [pack, self._ablation]
        connect(self._ablation.input, self.vary, chosen, varied, "benchmark_ablation")
        offered = [self._method, self._go, self._status]
        on_refresh([opened, swapped], self.invite, [pack], offered, "benchmark_run")
        timed, measured = self._time.click, [self._measured, *shown]
        name = "benchmark_speed"
        connect(timed, self.measure, [pack], measured, name, line=self._plot, question=True)
        run = [self._status, self._go, self._cancel]
        asked = [pack, self._method]
        connect(self._go.click, self.run, asked, run, "benchmark_run", at_once=True)
        connect(
            self._cancel.click, self.cancel, [], [self._cancel], "benchmark_cancel", at_once=True
        )

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

    def invite(self, key: str) -> dict[Any, Any]:
        """Offers what can be measured again of the visitor's pack."""
        info = self._session.retriever(key).info
        reason = obstacle(info) if self._session.packs.private else _PRIVATE
        names = [] if reason else measured_methods(info)
        titles = self._titles(key)
        choices = [("All methods", ALL), *((titles[name], name) for name in names)]
        return {
            self._method: gr.Dropdown(choices, value=ALL, interactive=bool(names)),
            self._go: gr.Button(interactive=bool(names)),
            self._status: view.invitation(reason),
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

    def run(self, key: str, method: str, request: gr.Request) -> Iterator[dict[Any, Any]]:
        """Evaluates one method, or all, and shows how far it is and what came out."""
        owner = str(request.session_hash)
        waiting = {
            self._go: gr.Button(interactive=False),
            self._cancel: gr.Button(interactive=True),
        }
        ended = {self._go: gr.Button(interactive=True), self._cancel: gr.Button(interactive=False)}
        try:
            if not self._session.packs.private:
                raise ValueError(_PRIVATE)
            retriever = self._session.retriever(key)
            info, device = retriever.info, retriever.device
            methods = [method] if method else measured_methods(info)
            with closing(self._runner.run(info, methods, device, owner)) as signs:
                for sign in signs:
                    if isinstance(sign, Outcome):
                        yield {self._status: self._compared(retriever, sign), **ended}
                    else:
                        doing = self._titles(key).get(sign.doing, sign.doing.capitalize())
                        yield {self._status: view.running(sign, doing), **waiting}
        except CancelledError as error:
            yield {self._status: view.ended(line(str(error))), **ended}
        except ValueError as error:
            yield {self._status: view.ended(problem(str(error))), **ended}

    def cancel(self, request: gr.Request) -> dict[Any, Any]:
        """Ends what this visitor started; `run` then says so."""
        self._runner.cancel(str(request.session_hash))
        return {self._cancel: gr.Button(interactive=False)}

    def _compared(self, retriever: Retriever, outcome: Outcome) -> str:
        info = retriever.info
        compared = {
            name: compare(metrics.values, values)
            for name, values in outcome.values.items()
            if (metrics := info.methods[name].metrics)
        }
        titles = {name: method.title for name, method in retriever.methods.items()}
        spent = f"{outcome.seconds:.0f} s on {hardware(retriever.device)}"
        return view.outcome(compared, titles, spent)

    def _titles(self, key: str) -> dict[str, str]:
        methods = self._session.retriever(key).methods
        return {name: method.title for name, method in methods.items()}
