"""Size limits of model folders, checked before anything of that size is built or read.

A hostile folder can claim a billion layers or hold a sparse file of a terabyte. Both are refused after reading a few
bytes of the weights file: its size, and the length of its header, which describes each tensor.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import CheckpointError
from heedful.models.model_config import ModelConfig
from heedful.untrusted_files import open_regular

MAX_HEADER_BYTES = 4 << 20
"""Longest header of a weights file: enough for some 30,000 tensors."""
TENSOR_HEADER_BYTES = 64
"""Minimum length of a tensor's description in the header."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
MAX_PARAMETER_BYTES = 8
"""Bytes of the widest number, a float64."""


def check_weights_file(file: Path) -> int:
    """Upper bound of the tensors in a safetensors file, from its header; a file that cannot be loaded is an error."""
    with open_regular(file) as stream:
        size, header = os.fstat(stream.fileno()).st_size, int.from_bytes(stream.read(8), "little")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise CheckpointError(f"{file} has {size >> 30:,} GiB; this machine has {memory >> 30:,} GiB of memory")
    if header > min(MAX_HEADER_BYTES, size):
        raise CheckpointError(f"{file} is damaged or no safetensors file: its header claims {header:,} bytes")
    return header // TENSOR_HEADER_BYTES


def check_layers(config: ModelConfig, file: Path, tensors: int) -> None:
    """Raise CheckpointError if a weights file has fewer tensors than its configuration has layers."""
    settings: Any = config
    layers = getattr(settings, "layers", 0) + (getattr(settings, "decoder_layers", None) or 0)
    if layers > tensors:
        raise CheckpointError(f"{file} does not hold the {layers:,} layers that its config.json describes")


def check_weights_size(model: nn.Module, file: Path) -> None:
    """Raise if a weights file is larger than any that holds this model's parameters."""
    largest = MAX_HEADER_BYTES + MAX_PARAMETER_BYTES * sum(weight.numel() for weight in model.state_dict().values())
    if (size := file.stat().st_size) > largest:
        raise CheckpointError(f"{file} has {size:,} bytes: more than the model that its config.json describes")


def check_values(weights: Mapping[str, Tensor], folder: Path) -> None:
    """Raise CheckpointError unless all weights are finite numbers of one floating-point type."""
    first, of_first = next(((name, weight.dtype) for name, weight in weights.items()), ("", torch.float32))
    for name, weight in weights.items():
        if weight.dtype not in DTYPES:
            raise CheckpointError(f"{folder}: the weight {name} is {_type(weight)}: get the folder again")
        if weight.dtype != of_first:
            types = f"{_type(weight)}, but {first} is {_type(weights[first])}"
            raise CheckpointError(f"{folder}: the weight {name} is {types}: a model computes in one type")
        if weight.numel() and not torch.stack([*weight.aminmax()]).isfinite().all():
            raise CheckpointError(
                f"{folder}: the weight {name} holds NaN or infinity, so the model cannot answer; "
                "get the folder again, or train the model again"
            )


def one_line(error: Exception) -> str:
    """The library's error about weights that do not fit, which names every weight, cut to one line."""
    return shorten(str(error), 500, placeholder=" …")


def _type(weight: Tensor) -> str:
    return str(weight.dtype).removeprefix("torch.")
