"""require_finite: what a model computed, if it is a number."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.errors import NonFiniteError


def require_finite(values: Tensor) -> Tensor:
    """The values; NonFiniteError if one of them is NaN or infinite: no answer follows from that."""
    if not bool(torch.isfinite(values).all()):
        raise NonFiniteError(
            "the model computes NaN or infinity for this text: its weights, or an intervention, make values too large"
        )
    return values
