"""Check that the outputs of a model are finite numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.errors import NonFiniteError


def require_finite(values: Tensor) -> Tensor:
    """Return the values; raise NonFiniteError if any of them is NaN or infinite."""
    if not bool(torch.isfinite(values).all()):
        raise NonFiniteError(
            "the model computes NaN or infinity for this text: its weights, or an intervention, make values too large"
        )
    return values
