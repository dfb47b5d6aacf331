"""ZeroGPU: hardware of Spaces that lends a GPU to a function for the time of a call.

A loan takes seconds and comes off the visitor's daily share, where a question takes the processor
milliseconds. So the app computes on the processor there, see `export.sessions.choose_device`.
"""

from __future__ import annotations

import torch

from export.sessions import on_zerogpu


def declare() -> None:
    """Names a function that could borrow a GPU, without which ZeroGPU ends an app at its start.

    It is never called. On any other machine nothing is declared.
    """
    if not on_zerogpu():
        return
    import spaces  # there only

    @spaces.GPU
    def lent_gpu() -> str:
        """The name of the GPU that a call gets."""
        return torch.cuda.get_device_name()
