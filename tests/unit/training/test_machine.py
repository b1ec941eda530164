"""What the machine is asked for."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
import numpy as np
from heedful.training.machine import keep_freed_memory
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
