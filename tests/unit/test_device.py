"""What the machine is asked for."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

FAULTS = """
import resource
import numpy as np
from heedful.device import keep_freed_memory
keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones(1 << 21), np.ones(1 << 21)
before = faults()
for _ in range(20):
    np.ones(1 << 21)  # 16 MB
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc is what is told")
def test_freed_memory_is_kept_unless_somebody_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = pages_cleared()
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.setenv(name, "131072")
    assert 10 * kept < pages_cleared()


def pages_cleared() -> int:
    return int(subprocess.check_output([sys.executable, "-c", FAULTS]))


SHAPES = """
import ctypes, os, sys
import torch
os.environ.pop("ONEDNN_PRIMITIVE_CACHE_CAPACITY", None)
from heedful.device import forget_kernels
if sys.argv[1] == "forget":
    forget_kernels()
class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena o s h d u f used free top".split()]
library = ctypes.CDLL(None)
library.mallinfo2.restype = Heap
def used():
    return library.mallinfo2().used
def read(tokens):
    x = torch.zeros(2, tokens, 16, requires_grad=True)
    torch.nn.functional.gelu(x).sum().backward()
read(9)
before = used()
for tokens in range(10, 60):
    read(tokens)
print(used() - before)
"""


@pytest.mark.skipif(platform.libc_ver() < ("glibc", "2.33"), reason="glibc's heap is what is looked into")
def test_shapes_leave_nothing_behind_on_the_heap(fork_server: Any, tmp_path: Path) -> None:
    kept, forgotten = (int(fork_server.run_script(SHAPES, how, folder=tmp_path).output) for how in ("keep", "forget"))
    assert forgotten < 200_000
    if torch.backends.mkldnn.is_available() and platform.machine() == "x86_64":
        assert 5 * forgotten < kept, "torch no longer keeps a kernel for each shape: forget_kernels can go"
