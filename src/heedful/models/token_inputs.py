"""Check the token ids given to a model: one clear error instead of one from deep inside it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import UsageError
from heedful.layers.embedding import require_rows

ID_DTYPES = (torch.int64, torch.int32)


def check_tokens(table: nn.Embedding, lengths: Any = None, segments: Any = None, **tokens: Any) -> None:
    """Raise UsageError unless these arguments, by their names, are batches of token ids that fit `table`.

    `lengths`: one number for each sequence; `segments`: one for each token. Ids outside the table are an error of
    `embedding_lookup` on a CPU; a GPU would end every later call in this process, so there they are checked first.
    """
    for name, ids in tokens.items():
        check_ids(name, ids, table)
        if ids.dim() != 2:
            hint = f"; add the batch axis with {name}[None]" * (ids.dim() == 1)
            raise UsageError(f"{name} must have the axes batch × tokens, got shape {tuple(ids.shape)}{hint}")
        if ids.is_cuda and may_synchronize(table, ids):
            require_rows(table, ids)
        batch, number = ids.shape
        if lengths is not None:
            _check_integers("lengths", lengths, ids, (batch,), f"one for each of the {batch} sequences")
        if segments is not None:
            _check_integers("segments", segments, ids, (batch, number), f"one for each of {batch} × {number} {name}")


def may_synchronize(table: nn.Embedding, ids: Tensor) -> bool:
    """Whether a check may synchronize with the GPU: not in training, a decode step, a CUDA graph or compiled code."""
    if table.training or ids.shape[1] == 1 or torch.compiler.is_compiling():
        return False
    return not torch.cuda.is_current_stream_capturing()


def check_same_batch(source: Tensor, target: Tensor) -> None:
    """Raise UsageError unless there is one target for each source."""
    if len(source) != len(target):
        raise UsageError(f"source has {len(source)} sequences, target {len(target)}; each source needs one target")


def check_ids(name: str, ids: Any, table: nn.Embedding) -> None:
    """Raise UsageError unless `ids` is a tensor of integers on the table's device."""
    if not isinstance(ids, Tensor):
        raise UsageError(
            f"{name} must be a tensor of token ids, got a {type(ids).__name__}; "
            "make one with torch.tensor([[…]]), batch × tokens"
        )
    if ids.dtype not in ID_DTYPES:
        raise UsageError(f"{name} must be token ids, integers, got {ids.dtype}; convert them with .long()")
    if ids.device != table.weight.device:
        raise UsageError(
            f"{name} is on {ids.device}, the model on {table.weight.device}; move one of them there with .to()"
        )


def _check_integers(name: str, numbers: Any, ids: Tensor, shape: tuple[int, ...], meaning: str) -> None:
    if not isinstance(numbers, Tensor):
        raise UsageError(f"{name} must be a tensor of integers, {meaning}; got a {type(numbers).__name__}")
    if tuple(numbers.shape) != shape or numbers.dtype not in ID_DTYPES:
        raise UsageError(f"{name} must be integers, {meaning}; got {numbers.dtype} of shape {tuple(numbers.shape)}")
    if numbers.device != ids.device:
        raise UsageError(f"{name} is on {numbers.device}, the tokens on {ids.device}; move one of them with .to()")
