"""onnxruntime sessions on the requested device."""

import os
import platform
import threading
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import onnxruntime as ort
import torch
from torch import Tensor

from polyview.export.pack.validation import PackError

Device = Literal["auto", "cpu", "cuda"]
CUDA = "CUDAExecutionProvider"
_MAX_MEMORY = 8 * 2**30  # bytes, for all CPU sessions together


def choose_device(device: Device) -> torch.device:
    """Returns the device to compute on; "auto" is CUDA if usable, otherwise the CPU.

    Raises ValueError for an unknown name, or for "cuda" if CUDA is not usable.
    """
    if device not in get_args(Device):
        raise ValueError(f'device must be "auto", "cpu" or "cuda", not "{device}"')
    if device == "cpu":
        return torch.device("cpu")
    if on_zerogpu():  # torch reports CUDA, but only functions with ZeroGPU's decorator can use it
        reason = "ZeroGPU lends a GPU for a single call, and a loan costs more than it saves here"
    elif not torch.cuda.is_available():
        reason = "torch finds no CUDA device"
    elif CUDA not in ort.get_available_providers():
        reason = "this onnxruntime was built without CUDA"
    else:
        return torch.device("cuda")
    if device == "cuda":
        raise ValueError(f'device "cuda" cannot be used: {reason}; use "cpu" or "auto"')
    return torch.device("cpu")


def on_zerogpu() -> bool:
    """Returns whether this process runs in a Hugging Face Space with ZeroGPU."""
    return os.environ.get("SPACES_ZERO_GPU", "").lower() in {"1", "t", "true"}


def hardware(device: torch.device | None = None) -> str:
    """Describes the hardware of a device; None stands for the GPU if there is one, else the CPU."""
    is_gpu = torch.cuda.is_available() if device is None else device.type == "cuda"
    if is_gpu:
        return torch.cuda.get_device_name(device)
    return f"{os.cpu_count()} CPU cores ({processor()})"


def processor() -> str:
    """Returns the processor's name, or its architecture if the name is unknown."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text("utf-8").splitlines() if cpuinfo.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


class Sessions:
    """The ONNX sessions of the pack in a folder; thread-safe. A session starts at its first use.

    With "cuda", onnxruntime must use CUDA; with "auto" it may fall back to the CPU.
    """

    def __init__(self, folder: Path, device: Device) -> None:
        self.device = choose_device(device)
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self.threads = min(count or 1, 4)  # CPU threads per operator; the networks are small
        self._folder, self._requires_cuda, self._lock = folder, device == "cuda", threading.Lock()
        self._sessions: dict[tuple[str, int], ort.InferenceSession] = {}
        self._providers: list[str | tuple[str, dict[str, str]]] = ["CPUExecutionProvider"]
        self._shares_memory = self.device.type == "cuda" and hasattr(ort.OrtValue, "__dlpack__")
        if self.device.type == "cuda":
            # Full float32 precision, as on the CPU: a ranking must not depend on the device.
            torch.backends.cudnn.allow_tf32 = False
            ort.preload_dlls()
            self._providers = [(CUDA, {"use_tf32": "0"}), *self._providers]

    def start(
        self, file: str, inputs: list[str], single_thread: bool = False
    ) -> ort.InferenceSession:
        """Returns the session of an ONNX file of the pack, and starts it if necessary.

        With `single_thread`, the session computes only in the caller's thread, so that the threads
        of many callers do not wait for each other after every operator. Raises PackError if
        onnxruntime cannot load the file or the names of its inputs are not `inputs`, ValueError if
        the device is "cuda" and onnxruntime cannot use CUDA.
        """
        threads = 1 if single_thread else self.threads
        with self._lock:
            if (key := (file, threads)) not in self._sessions:
                self._sessions[key] = self._load(file, inputs, threads)
            return self._sessions[key]

    def run(self, file: str, inputs: dict[str, np.ndarray], single_thread: bool = False) -> Tensor:
        """Computes the first output of an ONNX file from C-contiguous inputs; see `start`.

        Returns finite float32 of any shape, on the GPU if onnxruntime can share its memory with
        torch. Raises PackError if the network fails, or its output is not finite float32.
        """
        session = self.start(file, list(inputs), single_thread)
        try:
            if self._shares_memory:
                binding, output_name = session.io_binding(), session.get_outputs()[0].name
                for name, values in inputs.items():
                    binding.bind_cpu_input(name, values)
                binding.bind_output(output_name, self.device.type, self.device.index or 0)
                session.run_with_iobinding(binding)  # returns once the device has finished
                output = torch.from_dlpack(binding.get_outputs()[0])
            else:
                output = torch.from_numpy(session.run(None, inputs)[0])
        except Exception as error:  # onnxruntime's error classes have no common base
            raise PackError(f"{file} failed to run ({_reason(error)}); export it again") from error
        if output.dtype != torch.float32:
            raise PackError(f"{file} gives {output.dtype} instead of float32; export it again")
        if not bool(output.sum().isfinite()):  # a sum is cheaper than testing every value
            raise PackError(f"{file} gives NaN or infinity; fetch or export it again")
        return output

    def _load(self, file: str, inputs: list[str], threads: int) -> ort.InferenceSession:
        """Starts a session with `threads` CPU threads; raises errors as `start` does."""
        options, path = ort.SessionOptions(), self._folder / file
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3  # errors only
        # Sessions and torch share the CPU cores: idle threads must not spin.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if self.device.type == "cpu":
            _limit_memory()
            options.add_session_config_entry("session.use_env_allocators", "1")
        try:
            session = ort.InferenceSession(path, options, providers=self._providers)
        except Exception as error:  # onnxruntime's error classes have no common base
            message = f"onnxruntime cannot load {path} ({_reason(error)}); export it again"
            raise PackError(message) from error
        if (names := [node.name for node in session.get_inputs()]) != inputs:
            raise PackError(f"{path} has the inputs {names} instead of {inputs}; export it again")
        if self._requires_cuda and CUDA not in session.get_providers():
            need = "which needs the CUDA and cuDNN versions it was built for"
            reason = f"onnxruntime could not start its CUDA provider, {need}"
            raise ValueError(f'device "cuda" cannot be used: {reason}; use "cpu" or "auto"')
        return session


@cache
def _limit_memory() -> None:
    """Limits the memory of all CPU sessions; a tiny ONNX file could allocate any amount of it."""
    limit = _MAX_MEMORY  # or half of the machine's memory, if that is less
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limit = min(limit, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    kind = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = ort.OrtMemoryInfo("Cpu", kind, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg({"max_mem": limit}))


def _reason(error: Exception) -> str:
    """Returns the cause that an error of onnxruntime states, cut to 160 characters."""
    if "Available memory" in str(error):
        return "it needs more memory than allowed"
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return line.rpartition("Status Message: ")[2].rpartition(" : ")[2][:160]
