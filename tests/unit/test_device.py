"""Devices, and process-wide settings of allocator and oneDNN."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.device import select_device
from heedful.errors import UsageError

FAULTS = """
import resource
import numpy as np
from heedful.device import retain_freed_memory
retain_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones(1 << 21), np.ones(1 << 21)
before = faults()
for _ in range(20):
    np.ones(1 << 21)  # 16 MB
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_freed_memory_is_retained_unless_the_environment_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    retained = page_faults()
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.setenv(name, "131072")
    assert 10 * retained < page_faults()


def page_faults() -> int:
    return int(subprocess.check_output([sys.executable, "-c", FAULTS]))


SHAPES = """
import ctypes, os, sys
import torch
os.environ.pop("ONEDNN_PRIMITIVE_CACHE_CAPACITY", None)
from heedful.device import disable_onednn_cache
if sys.argv[1] == "disabled":
    disable_onednn_cache()
class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena o s h d u f used free top".split()]
library = ctypes.CDLL(None)
library.mallinfo2.restype = Heap
def used():
    return library.mallinfo2().used
def step(tokens):
    x = torch.zeros(2, tokens, 16, requires_grad=True)
    torch.nn.functional.gelu(x).sum().backward()
step(9)
before = used()
for tokens in range(10, 60):
    step(tokens)
print(used() - before)
"""


@pytest.mark.skipif(platform.libc_ver() < ("glibc", "2.33"), reason="mallinfo2 is glibc's")
def test_a_disabled_kernel_cache_keeps_nothing_on_the_heap(fork_server: Any, tmp_path: Path) -> None:
    enabled, disabled = (
        int(fork_server.run_script(SHAPES, cache, folder=tmp_path).output) for cache in ("enabled", "disabled")
    )
    assert disabled < 200_000
    if torch.backends.mkldnn.is_available() and platform.machine() == "x86_64":
        assert 5 * disabled < enabled, "torch no longer caches a kernel per shape: disable_onednn_cache can go"


def test_the_environment_decides_what_auto_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEEDFUL_DEVICE", "cpu")
    assert select_device("auto") == torch.device("cpu")
    monkeypatch.setenv("HEEDFUL_DEVICE", "abacus")
    with pytest.raises(UsageError, match="unknown device 'abacus'"):
        select_device("auto")
