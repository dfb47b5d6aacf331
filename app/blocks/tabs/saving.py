"""Files that visitors save: written when one is asked for, and downloaded at once."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import gradio as gr
from gradio.blocks import Block

from app.blocks.server import uploads
from app.gallery.image_files import reason
from models.files import write_whole

_DOWNLOAD = """(file) => {
    if (!file) return;
    const link = document.createElement("a");
    link.href = file.url;
    link.download = file.orig_name;
    link.click();
}"""


def keep(content: bytes, name: str, folder: Path) -> Path:
    """Writes a file, whole or not at all.

    Args:
        content: of the file.
        name: of the file.
        folder: where a folder is made for it, named after its content.

    Raises:
        ValueError: there is no room for it.
    """
    place = folder / hashlib.sha256(content).hexdigest()[:32]
    try:
        with uploads.room(len(content)):
            write_whole(place / name, content)
    except OSError as error:
        raise ValueError(
            f"the file cannot be kept ({reason(error)}); try again in some minutes"
        ) from error
    return place / name


def on_save(
    button: gr.Button,
    handler: Callable[..., str],
    inputs: Sequence[Block],
    file: gr.DownloadButton,
    name: str,
    then: str = _DOWNLOAD,
) -> None:
    """Connects a button to a file that is made, and downloaded in the same click.

    Args:
        button: what is clicked.
        handler: makes the file and answers with its path.
        inputs: what the handler gets.
        file: an invisible widget that takes the file.
        name: of the event.
        then: what the browser does with the file instead, as JavaScript.
    """
    made = button.click(
        handler,
        list(inputs),
        file,
        api_name=name,
        api_visibility="undocumented",
        show_progress="minimal",
        show_progress_on=[button],
    )
    made.success(None, file, js=then, api_visibility="private")
