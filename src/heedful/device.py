"""What the machine is and what it holds: devices, memory."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import resource
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from heedful.errors import UsageError


def select_device(name: str = "auto") -> torch.device:
    """cuda, else mps, else cpu; or the one asked for, if it is there."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    torch.backends.cuda.enable_cudnn_sdp(False)  # but see cudnn_attention
    if name == "auto":
        return torch.device(next(kind for kind, there in present.items() if there))
    kind = name.partition(":")[0]
    if kind not in present:
        raise UsageError(f"unknown device '{name}'; known: auto, {', '.join(present)}")
    if not present[kind]:
        raise UsageError(f"no {kind} device here; use --device auto or cpu")
    return torch.device(name)


@cache
def matmul_flops(device: torch.device) -> float:
    """Operations per second of a large matrix product, found out once: what all else is measured against."""
    size, kind = (4096, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        (a @ b).sum().item()  # reading a value waits for the device
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def memory_in_use(device: torch.device) -> int:
    """Bytes held now: on the device, or by this process."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    return peak_memory(device)


def peak_memory(device: torch.device) -> int:
    """The most bytes held since `reset_peak`, or since the start where the system cannot forget."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")  # getrusage would also count the process that started this one
    if status.exists():
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if "VmHWM" in line)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def reset_peak_memory(device: torch.device) -> None:
    """Begin to measure the peak afresh."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def available_memory(device: torch.device) -> int:
    """Bytes that could still be had, without anything being pushed out."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        return next(int(line.split()[1]) * 1024 for line in meminfo.read_text().splitlines() if "MemAvailable" in line)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def release_freed_memory() -> None:
    """Hand what is freed back to the system, once: what is then in use is really in use."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def retain_freed_memory() -> None:
    """Let this process keep what it frees for what it needs next, up to a point (glibc).

    A step on a CPU asks for the same blocks again and again; having the system clear them takes 4 to 10% of it.
    """
    if "MALLOC_MMAP_THRESHOLD_" in os.environ or "MALLOC_TRIM_THRESHOLD_" in os.environ:
        return  # somebody has decided
    trim, as_files = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(as_files, 32 << 20)
        library.mallopt(trim, 512 << 20)


def disable_onednn_cache() -> None:
    """Let oneDNN make its kernels anew rather than keep one for every shape it has seen (GELU on a CPU; LSTM).

    Where every batch has a shape of its own they are hardly ever met again, but stay where they are, in the midst of
    the heap, which cannot close up around them: a run of 350 steps came to hold 1.6 times as much. Heard before the
    first kernel is made, or not at all.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "0")


def describe_machine(device: torch.device) -> str:
    """For the card: what the numbers were measured on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return f"{device.type} ({name}), {torch.get_num_threads()} threads, torch {torch.__version__.partition('+')[0]}"
