"""What the machine is and what it holds: devices, memory."""

from __future__ import annotations

import platform
import resource
import time
from pathlib import Path

import torch

from heedful.errors import UsageError


def pick_device(name: str = "auto") -> torch.device:
    """cuda, else mps, else cpu; or the one asked for, if it is there."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in present.items() if there))
    kind = name.partition(":")[0]
    if kind not in present:
        raise UsageError(f"unknown device '{name}'; known: auto, {', '.join(present)}")
    if not present[kind]:
        raise UsageError(f"no {kind} device here; use --device auto or cpu")
    return torch.device(name)


def matmul_flops(device: torch.device) -> float:
    """Operations per second of a large matrix product: the speed everything else is measured against."""
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
    """The most bytes held so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def describe_machine(device: torch.device) -> str:
    """For the card: what the numbers were measured on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return f"{device.type} ({name}), {torch.get_num_threads()} threads, torch {torch.__version__.partition('+')[0]}"
