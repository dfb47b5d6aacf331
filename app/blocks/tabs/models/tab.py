"""The Models tab: what is loaded, what it reached, where it runs, and loading another pack.

What the Hub has is looked at first; only a second press, on a button that says how much, fetches.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import gradio as gr

from app.blocks.tabs.events import Event, connect, on_refresh
from app.blocks.tabs.fetching import fetching, stronger
from app.blocks.tabs.html import line, problem
from app.blocks.tabs.models import view
from app.blocks.tabs.session import Session
from app.packs.description import describe
from app.packs.jobs import CancelledError
from app.packs.presets import Preset, offered
from export.build.offer import CLIP, PACK, VSE_INFTY, Offer

Updates = dict[Any, Any]

_LOAD = "Load"
_STOP, _GO_ON = "Stop reading", "Go on reading"
_STEP = 5.0  # seconds that a step of reading takes at most, but for very large images
_CHOICES = [("A pack", PACK), ("CLIP, zero-shot", CLIP), ("VSE∞, the authors' weights", VSE_INFTY)]
_ADDRESSES = {
    PACK: "",
    CLIP: "openai/clip-vit-base-patch32",
    VSE_INFTY: "cccjc/vse-infty/f30k_wsl_grid_bert",
}
_ACCEPTED = {
    CLIP: "a Hub id of a CLIP, such as openai/clip-vit-base-patch32 or owner/name@revision",
    VSE_INFTY: "a checkpoint on the Hub, as owner/name/folder or owner/name/folder@revision",
}


class ModelsTab:
    """Widgets as attributes, handlers as methods; every handler answers with {widget: update}."""

    def __init__(self, session: Session, selected: Event) -> None:
        self._session = session
        self._selected = selected
        self._offer = gr.State(None)
        self._pack = gr.HTML()
        self._here = gr.HTML(elem_id="pv-here")
        self._stronger = gr.HTML(elem_id="pv-stronger")
        self._pause = gr.Button(_STOP, size="sm", visible=False, elem_id="pv-pause")
        self._clock = gr.Timer(2.0, active=False)
        self._kind = gr.Radio(
            _CHOICES, value=PACK, label="Load", visible=session.packs.private, elem_id="pv-kind"
        )
        with gr.Row(elem_id="pv-load"):
            self._address = gr.Textbox(
                label="Which",
                info=session.packs.sources.accepts,
                placeholder="owner/name",
                max_lines=1,
                scale=6,
                elem_id="pv-address",
            )
            self._load = gr.Button(_LOAD, scale=1, min_width=96, elem_id="pv-load-go")
            self._cancel = gr.Button(
                "Cancel", scale=1, min_width=96, visible=False, elem_id="pv-load-cancel"
            )
        self._message = gr.HTML(elem_id="pv-load-message")
        self._methods = gr.HTML()
        self._connect()

    def _connect(self) -> None:
        pack = self._session.pack
        asked = [self._kind, self._address]
        answered = [self._offer, self._message, self._load, self._cancel]
        for event, name in ((self._load.click, "load_pack"), (self._address.submit, "enter_pack")):
            given, answer = [pack, *asked, self._offer], [pack, *answered]
            connect(event, self.load, given, answer, name, line=self._message, at_once=True)
        chosen = [self._address, *answered]
        connect(
            self._kind.input, self.choose, [self._kind], chosen, "choose_pack",
            line=self._message,
        )  # fmt: skip
        edited = [self._address, self._offer]
        connect(self._address.change, self.edit, edited, answered, "edit_pack", queue=False)
        connect(self._cancel.click, self.cancel, [], [self._cancel], "cancel_pack", at_once=True)
        events = ((self._selected, "select"), (pack.change, "swap"))
        shown = [self._pack, self._pause, self._clock, self._methods, self._here, self._stronger]
        on_refresh(events, self.refresh, [pack], shown, "models")
        ticks = [(self._clock.tick, "tick")]
        on_refresh(ticks, self.refresh, [pack], shown, "models", queue=False)
        connect(self._pause.click, self.pause, [pack], shown, "pause_reading")

    def choose(self, kind: str) -> Updates:
        """Names the usual address of a choice, and what it would fetch."""
        if kind not in _ADDRESSES:
            raise ValueError(f"choose one of {', '.join(_ADDRESSES)}")
        address = _ADDRESSES[kind]
        shown = gr.Textbox(
            value=address,
            placeholder=address or "owner/name",
            info=_ACCEPTED.get(kind, self._session.packs.sources.accepts),
        )
        updates = {self._address: shown, **self.forget()}
        if not address:
            return updates
        try:
            return {**updates, **self._look(kind, address)}
        except (ValueError, OSError) as error:
            return {**updates, self._message: problem(self._session.packs.sentence(error))}

    def edit(self, address: str, offer: Offer | None) -> Updates:
        """Takes back an offer whose address is another one by now."""
        same = offer is None or offer.address == address.strip()
        return {self._message: gr.update()} if same else self.forget()

    def forget(self) -> Updates:
        """Offers nothing, and shows no message."""
        return {
            self._offer: None,
            self._message: "",
            self._load: gr.Button(_LOAD, interactive=True),
            self._cancel: gr.Button(visible=False),
        }

    def load(
        self, key: str, kind: str, address: str | None, offer: Offer | None, request: gr.Request
    ) -> Iterator[Updates]:
        """Opens a pack for this visitor; where that fails, the present one goes on serving.

        What must be fetched is shown first; a second press fetches it.
        """
        packs, address, obtained = self._session.packs, (address or "").strip(), False
        try:
            folder = packs.sources.find(kind, address)
            if folder is None and (offer is None or (offer.kind, offer.address) != (kind, address)):
                found = packs.sources.look(kind, address)
                if isinstance(found, Offer):
                    yield self._offered(found)
                    return
                folder = found
            if folder is None and offer is not None:
                owner = request.session_hash or uuid4().hex  # without a page nobody can cancel it
                with closing(packs.sources.obtain(offer, owner)) as signs:
                    for sign in signs:
                        if isinstance(sign, Path):
                            folder, obtained = sign, True
                        else:
                            yield self._waiting(fetching(sign))
            assert folder is not None
            yield self._waiting(line("Opening the pack …"), cancel=False)
            loaded = packs.open(folder, obtained, key)
        except CancelledError as error:
            yield {**self.forget(), self._message: line(f"{error}; nothing was kept.")}
            return
        except (ValueError, OSError) as error:
            serving = self._session.retriever(key).info.title
            sentence = f"{packs.sentence(error).rstrip('.')}. {serving} goes on serving."
            yield {**self.forget(), self._message: problem(sentence)}
            return
        title = self._session.retriever(loaded).info.title
        message = line(f"{title} is loaded.")
        yield {**self.forget(), self._message: message, self._session.pack: loaded}

    def cancel(self, request: gr.Request) -> Updates:
        """Ends what this visitor started; `load` then says so."""
        self._session.packs.cancel(request.session_hash or "")
        return {self._cancel: gr.Button(interactive=False)}

    def pause(self, key: str) -> Updates:
        """Stops the reading of the visitor's gallery, or goes on with it."""
        if not self._session.packs.private:
            raise ValueError("reading is stopped only where no other machine reaches the app")
        index = self._session.retriever(key).index
        if index.progress.stage == "stopped":
            index.start()
        else:
            index.stop()
            index.wait(_STEP)
        return self.refresh(key)

    def refresh(self, key: str) -> Updates:
        """Shows the visitor's pack, how far its gallery is, and what is left out of it."""
        retriever = self._session.retriever(key)
        info, progress = describe(retriever), retriever.index.progress
        packs = self._session.packs
        return {
            self._pack: view.pack_card(info),
            self._pause: gr.Button(
                _GO_ON if progress.stage == "stopped" else _STOP,
                visible=self._session.packs.private and not progress.finished,
            ),
            self._clock: gr.Timer(active=not progress.finished),
            self._methods: view.method_cards(info),
            self._here: view.packs_here(packs.here(), packs.name(key), packs.keeps_images(key)),
            self._stronger: stronger(self._unlisted()) if packs.private else "",
        }

    def _unlisted(self) -> list[tuple[Preset, bool]]:
        """The presets that are not among the packs on this machine."""
        every = offered(self._session.packs.sources.obtainer)
        return [(preset, here) for preset, here in every if not here or preset.kind == PACK]

    def _look(self, kind: str, address: str) -> Updates:
        """What an address would fetch, or that it is here."""
        packs = self._session.packs
        found = packs.sources.find(kind, address) or packs.sources.look(kind, address)
        if isinstance(found, Offer):
            return self._offered(found)
        return {self._message: line("It is on this machine: nothing is to be fetched.")}

    def _offered(self, offer: Offer) -> Updates:
        return {
            self._offer: offer,
            self._message: view.offer_card(offer),
            self._load: gr.Button(view.button(offer), interactive=True),
            self._cancel: gr.Button(visible=False),
        }

    def _waiting(self, message: str, cancel: bool = True) -> Updates:
        return {
            self._message: message,
            self._load: gr.Button(interactive=False),
            self._cancel: gr.Button(visible=cancel, interactive=True),
        }
