"""The machine the app runs on, in words, to stand beside what was measured on it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch


def processor() -> str:
    """The processor's name where the system tells it."""
    table = Path("/proc/cpuinfo")
    if table.is_file():
        for line in table.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def hardware(device: torch.device) -> str:
    """What computes on a device: the name of the GPU, or the processor and its cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{os.cpu_count()} CPU cores ({processor()})"
