"""Kernels run on the GPU where there is one, otherwise in Triton's interpreter on the CPU (see tests/conftest.py)."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is installed on Linux only")


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
