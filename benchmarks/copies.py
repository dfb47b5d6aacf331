"""What a piece of work copies from a GPU to the host, as torch's profiler sees it."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

# A search takes the number and the places of its hits from the device, every encoder one flag
# that all it gives is finite, and Sinkhorn one number an iteration.
FLAGS = 4096  # bytes


@dataclass(frozen=True)
class Copied:
    """Copies from device to host.

    Attributes:
        times: how many.
        size: bytes of all together.
    """

    times: int
    size: int

    @property
    def small(self) -> bool:
        """Whether nothing but flags and the answer's places came to the host."""
        return self.size <= FLAGS


def copied(work: Callable[[], object]) -> Copied:
    """Copies to the host while something is done, once it has been done before."""
    work()
    kinds = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        kinds.append(ProfilerActivity.CUDA)
    with profile(activities=kinds) as seen:
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(trace))
        return read_trace(trace)


def read_trace(path: Path) -> Copied:
    """The copies of a trace that torch's profiler wrote; those of onnxruntime are in it, too."""
    events = json.loads(path.read_text("utf-8", errors="replace"))["traceEvents"]
    sizes = [
        int(event["args"]["bytes"])
        for event in events
        if event.get("cat") == "gpu_memcpy" and "DtoH" in event.get("name", "")
    ]
    return Copied(len(sizes), sum(sizes))
