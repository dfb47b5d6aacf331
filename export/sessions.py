"""onnxruntime sessions: on the device that was asked for, or with a sentence why not."""

import os
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import onnxruntime as ort
import torch
from torch import Tensor

from export.pack.validation import PackError

Device = Literal["auto", "cpu", "cuda"]
MANY = 10_000  # images; to score fewer takes less time than threads need to find one another
_MOST_MEMORY = 8 * 2**30  # bytes for all sessions on the CPU together
CUDA = "CUDAExecutionProvider"
_TORCH_THREADS = torch.get_num_threads()
_lock = threading.Lock()
_asked = 0


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


def hardware(device: torch.device | None = None) -> str:
    """What computes, to stand beside every measured number: the GPU, or the processor's cores.

    Args:
        device: None for the GPU where torch finds one.
    """
    if torch.cuda.is_available() if device is None else device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{os.cpu_count()} CPU cores ({processor()})"


def processor() -> str:
    """The processor's name where the system tells it."""
    table = Path("/proc/cpuinfo")
    if table.is_file():
        for line in table.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def default_threads() -> int:
    """Threads for one session: the processors this process may use, at most 4.

    The networks here are small; beyond a few threads they wait for each other.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(usable or 1, 4)


@contextmanager
def shared_processors(images: int) -> Iterator[None]:
    """Shares the processors among questions that are answered at once.

    Meanwhile torch's operators take, in this thread, a question's share of them.

    An operator in several threads waits for the slowest of them: where others need the processors,
    too, that is most of its time.

    Args:
        images: how many are searched.
    """
    global _asked
    with _lock:
        _asked += 1
        share = max(1, _TORCH_THREADS // _asked) if images >= MANY else 1
    torch.set_num_threads(share)
    try:
        yield
    finally:
        with _lock:
            _asked -= 1
        torch.set_num_threads(_TORCH_THREADS)


class Encoder:
    """A session whose file may be anything, so that what it gives is checked.

    Args:
        file: its name, for messages.
        session: with one output that matters, the first.
        bound: the device where the output is to stay, by I/O binding; None takes it as an array.
    """

    def __init__(
        self, file: str, session: ort.InferenceSession, bound: torch.device | None = None
    ) -> None:
        self._file = file
        self._session = session
        self._bound = bound

    def get_providers(self) -> list[str]:
        """Onnxruntime's providers in use, best first."""
        return self._session.get_providers()

    def run(self, inputs: dict[str, np.ndarray]) -> Tensor:
        """Computes.

        Args:
            inputs: C-contiguous.

        Returns:
            Finite float32, of any shape, on the device where it was computed.

        Raises:
            PackError: it cannot be computed, or gives something else.
        """
        try:
            given = self._compute(inputs)
        except Exception as error:
            # onnxruntime has a class of error for every status code, without a common base.
            raise PackError(
                f"{self._file} cannot be computed; export it again ({_reason(error)})"
            ) from error
        if not isinstance(given, Tensor):
            raise PackError(f"{self._file} gives {given} instead of float32; export it again")
        if not bool(given.sum().isfinite()):  # a sum is cheaper than a look at every value
            raise PackError(f"{self._file} gives NaN or infinity; fetch or export it again")
        return given

    def _compute(self, inputs: dict[str, np.ndarray]) -> Tensor | str:
        """The output; or what kind it is, where that is not float32."""
        if self._bound is None:
            array = self._session.run(None, inputs)[0]
            if isinstance(array, np.ndarray) and array.dtype == np.float32:
                return torch.from_numpy(array)
            return str(array.dtype) if isinstance(array, np.ndarray) else type(array).__name__
        binding = self._session.io_binding()
        for name, values in inputs.items():
            binding.bind_cpu_input(name, values)
        first = self._session.get_outputs()[0].name
        binding.bind_output(first, self._bound.type, self._bound.index or 0)
        self._session.run_with_iobinding(binding)  # returns once the device is done
        output = binding.get_outputs()[0]
        found = output.data_type()
        return torch.from_dlpack(output) if found == "tensor(float)" else found


class Sessions:
    """The ONNX sessions of one pack, each started at its first use; safe to share by threads.

    Args:
        place: where a file of the pack is, see `export.pack.schema.PackInfo.path`.
        device: "cuda" insists that onnxruntime itself uses CUDA; "auto" lets it fall back.
        threads: for operators on the CPU; None chooses.
        heads: where torch is to compute; None for the device of the encoders.
        bound: leave what encoders give on their device; None where that is not the CPU.

    Attributes:
        device: where torch is to compute.
        threads: that one session's operators use on the CPU.

    Raises:
        DeviceError: see `choose_device`.
        ValueError: fewer than one thread.
    """

    def __init__(
        self,
        place: Callable[[str], Path],
        device: Device,
        threads: int | None = None,
        heads: torch.device | None = None,
        bound: bool | None = None,
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        self._encoders = choose_device(device)
        self.device = heads or self._encoders
        if self.device.type == "cuda":  # full float32, as on the CPU; see `_providers`
            torch.backends.cudnn.allow_tf32 = False
        # onnxruntime before DLPack gives arrays alone
        able = self._encoders.type != "cpu" and hasattr(ort.OrtValue, "__dlpack__")
        self._bound = self._encoders if (able if bound is None else bound) else None
        self._place = place
        self._strict = device == "cuda"
        self.threads = threads or default_threads()
        self._open: dict[tuple[str, int], Encoder] = {}
        self._lock = threading.Lock()

    def get(self, file: str, inputs: list[str], alone: bool = False) -> Encoder:
        """The encoder in an ONNX file.

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
                session = self._start(self._place(file), inputs, threads)
                self._open[file, threads] = Encoder(file, session, self._bound)
            return self._open[file, threads]

    def _start(self, path: Path, inputs: list[str], threads: int) -> ort.InferenceSession:
        try:
            options = self._options(threads)
            session = ort.InferenceSession(path, options, providers=self._providers())
        except Exception as error:
            # onnxruntime has a class of error for every status code, without a common base.
            raise PackError(
                f"onnxruntime cannot load {path}; export it again ({_reason(error)})"
            ) from error
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
        if self._encoders.type == "cpu":
            _bound_memory()
            options.add_session_config_entry("session.use_env_allocators", "1")
        return options

    def _providers(self) -> list[str | tuple[str, dict[str, str]]]:
        if self._encoders.type == "cpu":
            return ["CPUExecutionProvider"]
        ort.preload_dlls()
        # Full float32, as on the CPU: a ranking must not depend on the device.
        return [(CUDA, {"use_tf32": "0"}), "CPUExecutionProvider"]


@cache
def _bound_memory() -> None:
    """Gives all sessions on the CPU one store of memory: a file's few bytes may ask for any amount.

    Once in a process; onnxruntime keeps it for good.
    """
    most = _MOST_MEMORY
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        most = min(most, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    kind = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    # -1 leaves the choice to onnxruntime
    usual = ("arena_extend_strategy", "initial_chunk_size_bytes", "max_dead_bytes_per_chunk")
    ort.create_and_register_allocator(
        ort.OrtMemoryInfo("Cpu", kind, 0, ort.OrtMemType.DEFAULT),
        ort.OrtArenaCfg({"max_mem": most, **dict.fromkeys(usual, -1)}),
    )


def _reason(error: Exception) -> str:
    """The first line of what onnxruntime says, short and without what precedes its own words."""
    if "Available memory" in str(error):
        return "it asks for more memory than it may have"
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return line.rpartition("Status Message: ")[2].rpartition(" : ")[2][:160]
