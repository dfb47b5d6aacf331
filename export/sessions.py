"""onnxruntime sessions: on the device that was asked for, or with a sentence why not."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Literal, get_args

import onnxruntime as ort
import torch

from export.fields import PackError

Device = Literal["auto", "cpu", "cuda"]
CUDA = "CUDAExecutionProvider"


class DeviceError(ValueError):
    """The device that was asked for cannot be used; the message says why."""


def choose_device(device: Device) -> torch.device:
    """Decides where to compute.

    Args:
        device: "cpu"; "cuda", which is refused where there is none; or "auto", the better of both.

    Raises:
        DeviceError: an unknown device, or no usable CUDA although it was asked for.
    """
    if device not in get_args(Device):
        raise DeviceError(f'device must be "auto", "cpu" or "cuda", not "{device}"')
    if device == "cpu":
        return torch.device("cpu")
    if on_zerogpu():  # where torch says that it has CUDA, but only single calls do
        why = "ZeroGPU lends its GPUs to single calls, which cost more than they would save here"
    elif not torch.cuda.is_available():
        why = "torch finds no CUDA device"
    elif CUDA not in ort.get_available_providers():
        why = "this onnxruntime was built without CUDA"
    else:
        return torch.device("cuda")
    if device == "cuda":
        raise DeviceError(f'device "cuda" cannot be used: {why}; use "cpu" or "auto"')
    return torch.device("cpu")


def on_zerogpu() -> bool:
    """Whether this is a Space on ZeroGPU, by the variable that the Hub sets there."""
    return os.environ.get("SPACES_ZERO_GPU", "").lower() in {"1", "t", "true"}


def default_threads() -> int:
    """Threads for one session: the processors this process may use, at most 4.

    The networks here are small; beyond a few threads they wait for each other.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(usable or 1, 4)


class Sessions:
    """The ONNX sessions of one pack, each started at its first use; safe to share by threads.

    Args:
        folder: the pack's folder.
        device: "cuda" insists that onnxruntime itself uses CUDA; "auto" lets it fall back.
        threads: for operators on the CPU; None chooses.

    Attributes:
        device: where torch is to compute.
        threads: that one session's operators use on the CPU.

    Raises:
        DeviceError: see `choose_device`.
        ValueError: fewer than one thread.
    """

    def __init__(self, folder: Path, device: Device, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        self.device = choose_device(device)
        self._folder = folder
        self._strict = device == "cuda"
        self.threads = threads or default_threads()
        self._open: dict[tuple[str, int], ort.InferenceSession] = {}
        self._lock = threading.Lock()

    def get(self, file: str, inputs: list[str], alone: bool = False) -> ort.InferenceSession:
        """The session of an ONNX file.

        Args:
            file: relative to the pack.
            inputs: the names its inputs must have.
            alone: one that computes in its caller's thread only, for callers in many threads: they
                need not wait for each other after every operator.

        Raises:
            PackError: onnxruntime cannot load the file, or its inputs have other names.
            DeviceError: CUDA was insisted on and onnxruntime could not start it.
        """
        with self._lock:
            threads = 1 if alone else self.threads
            if (file, threads) not in self._open:
                self._open[file, threads] = self._start(self._folder / file, inputs, threads)
            return self._open[file, threads]

    def _start(self, path: Path, inputs: list[str], threads: int) -> ort.InferenceSession:
        try:
            options = self._options(threads)
            session = ort.InferenceSession(path, options, providers=self._providers())
        except Exception as error:
            # onnxruntime has a class of error for every status code, without a common base.
            raise PackError(f"onnxruntime cannot load {path}: {error}") from error
        found = [put.name for put in session.get_inputs()]
        if found != inputs:
            raise PackError(f"{path} has the inputs {found} instead of {inputs}; export it again")
        if self._strict and CUDA not in session.get_providers():
            raise DeviceError(
                'device "cuda" cannot be used: onnxruntime could not start its CUDA provider, '
                'which needs the CUDA and cuDNN versions it was built for; use "cpu" or "auto"'
            )
        return session

    def _options(self, threads: int) -> ort.SessionOptions:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors only
        # Several sessions and torch share the processors: idle threads must not keep them busy.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return options

    def _providers(self) -> list[str | tuple[str, dict[str, str]]]:
        if self.device.type == "cpu":
            return ["CPUExecutionProvider"]
        ort.preload_dlls()
        # Full float32, as on the CPU: a ranking must not depend on the device.
        return [(CUDA, {"use_tf32": "0"}), "CPUExecutionProvider"]
