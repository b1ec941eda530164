"""Devices, their memory, and process-wide settings of torch."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import torch

from heedful.errors import UsageError
from heedful.quantities import count
from heedful.syntax import argument


def select_device(device: str | torch.device = "auto") -> torch.device:
    """The device of this name; "auto": the one HEEDFUL_DEVICE names, else CUDA if there is any, else MPS, else CPU.

    Also switches cuDNN attention off for this process: it is slow when shapes vary. `cudnn_attention` enables it
    where they do not.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    name = str(device)
    if name == "auto":
        name = os.environ.get("HEEDFUL_DEVICE") or "auto"
    if name == "auto":
        return torch.device(next(kind for kind, available in present.items() if available))
    kind, colon, index = name.partition(":")
    if kind not in present or (colon and not index.isdecimal()):
        raise UsageError(f"unknown device {name!r:.60}; known: auto, {', '.join(present)}")
    if not present[kind]:
        raise UsageError(f"{argument('device', name)}: there is no {kind} device here; use {argument('device', 'cpu')}")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UsageError(f"{argument('device', name)}: there are {count}, counted from cuda:0")
    return torch.device(name)


@contextmanager
def cudnn_attention(enabled: bool) -> Iterator[None]:
    """Enable or disable cuDNN's attention. It builds a plan for every shape: use it only if all batches have one shape.

    On an H200 a step of GPT-2 (64 × 1,024 tokens) took 124 ms with it and 129 without; batches bucketed by length
    averaged 83 ms with it and 47 without.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(enabled)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@cache
def matmul_flops(device: torch.device) -> float:
    """Measure, once per process, the operations per second of a large matrix product."""
    size, dtype = (4096, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        (a @ b).sum().item()  # item() waits for the device
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def memory_in_use(device: torch.device) -> int:
    """Bytes in use: on a CUDA device, or by this process."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    return peak_memory(device)


def peak_memory(device: torch.device) -> int:
    """Peak bytes in use since `reset_peak_memory`, or since the process started where the peak cannot be reset."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")  # getrusage also counts the parent before exec
    if status.exists():
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if "VmHWM" in line)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak of `peak_memory`."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def available_memory(device: torch.device) -> int:
    """Bytes that can be allocated without swapping."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        return next(int(line.split()[1]) * 1024 for line in meminfo.read_text().splitlines() if "MemAvailable" in line)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def release_freed_memory() -> None:
    """Return freed memory to the system once, so that `memory_in_use` counts only what is needed."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def retain_freed_memory() -> None:
    """Let the allocator (glibc) keep up to 512 MB of freed memory for reuse.

    A training step on a CPU allocates the same blocks again and again; having the system zero them takes 4 to 10% of
    its time. Thresholds set in the environment take precedence.
    """
    if "MALLOC_MMAP_THRESHOLD_" in os.environ or "MALLOC_TRIM_THRESHOLD_" in os.environ:
        return
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(mmap_threshold, 32 << 20)
        library.mallopt(trim_threshold, 512 << 20)


def disable_onednn_cache() -> None:
    """Disable oneDNN's cache of one compiled kernel per shape (GELU and LSTM on a CPU).

    When every batch has another shape, cached kernels are hardly ever reused but fragment the heap: a run of 350 steps
    used 1.6 times the memory. Has no effect after the first kernel was compiled.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "0")


def process_start() -> float:
    """When this process started, on the clock of `time.monotonic`."""
    now, status = time.monotonic(), Path("/proc/self/stat")
    if not status.exists():  # not Linux: the time that imports took is about the processor time used so far
        return now - time.process_time()
    ticks = int(status.read_text().rpartition(")")[2].split()[19])
    return now - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def describe_machine(device: torch.device) -> str:
    """Device, threads and torch version, for the model card."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    threads = count(torch.get_num_threads(), "thread")
    return f"{device.type} ({name}), {threads}, torch {torch.__version__.partition('+')[0]}"
