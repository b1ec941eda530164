"""Weights in shards: each process keeps a part of every weight, its gradient and optimizer state (FSDP2).

Blocks are gathered when they run and let go of after; what lies outside of blocks is gathered for the length of a
step. All else sees weights of their usual names and shapes. Checkpoints are written and read in parts; only a model
that is evaluated or saved for use is put together, in the first process.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.layers.block import Block
from heedful.model_folder import build_without_weights
from heedful.models.recurrent import Recurrence
from heedful.training.checkpoint import sharded_tensors as pieces
from heedful.training.checkpoint.sharded_tensors import TensorShard, SliceableTensor, is_sharded
from heedful.training.distributed.process_group import ProcessGroup

FORWARD_METHODS = ("teacher_forced_states", "states")
"""Where an objective enters a model. Only the first that a model has: a step must gather its weights once."""


def shard_model(model: nn.Module, process_group: ProcessGroup, device: torch.device) -> None:
    """Cut every weight into as many parts as there are processes.

    A model whose weights have no memory yet (meta) gets it here, for this process's parts alone.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device.type, (process_group.size,))
    for part in [*(part for part in model.modules() if isinstance(part, Block | Recurrence)), model]:
        fully_shard(part, mesh=mesh, reshard_after_forward=part is not model)
    entrance = next(name for name in FORWARD_METHODS if hasattr(model, name))
    register_fsdp_forward_method(model, entrance)
    for part in model.modules():
        if isinstance(part, FSDPModule):
            # A sum, as the loss is: it is divided by labels, not by processes. By the plain sum that gloo knows, too.
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
    if any(weight.is_meta for weight in model.parameters()):
        model.to_empty(device=device)


def full_tensor(tensor: Tensor) -> Tensor:
    """A tensor put together from its shards, by all processes at once; one that has none, as it is."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def local_slices(tensor: SliceableTensor) -> pieces.Slices:
    """The part of a tensor that this process keeps: all of it, unless it is cut."""
    block = [slice(0, length) for length in tensor.shape]
    if is_sharded(tensor):
        from torch.distributed.tensor import Shard

        (cut,) = tensor.placements
        assert isinstance(cut, Shard)
        length, mesh = tensor.shape[cut.dim], tensor.device_mesh
        each = -(-length // mesh.size())
        start = min(length, each * mesh.get_local_rank())
        block[cut.dim] = slice(start, min(length, start + each))
    return tuple(block)


def local_shard(tensor: SliceableTensor) -> TensorShard:
    """What this process keeps of a tensor, with its place in the whole."""
    block = local_slices(tensor)
    own = tensor.to_local().detach() if is_sharded(tensor) else tensor[block]
    return TensorShard(own, tuple(part.start for part in block), tuple(tensor.shape))


def shard_like(tensor: SliceableTensor, like: Tensor) -> Tensor:
    """A new tensor with what a whole one holds, where and as `like` is: on its device, and cut if that is.

    No more of the whole is looked at than this process keeps.
    """
    if tensor.shape != like.shape:  # one number for the whole of a weight, say
        return local_shard(tensor).tensor.to(like.device, copy=True)
    found = torch.empty_like(like, dtype=tensor.dtype)
    local_shard(found).tensor.copy_(tensor[local_slices(found)])
    return found


def gather_full_tensors(tensors: dict[str, Tensor], process_group: ProcessGroup) -> dict[str, Tensor]:
    """Weights in one piece, one after the other, in the first process's main memory."""
    found = {}
    for name, tensor in tensors.items():
        full = full_tensor(tensor)
        if process_group.is_rank_zero:
            found[name] = full.cpu()
    return found


def unsharded_model(model: nn.Module, process_group: ProcessGroup) -> nn.Module:
    """The model itself; or, if it is cut, in the first process a copy in one piece: for evaluation and saving."""
    weights = model.state_dict()
    if not any(is_sharded(weight) for weight in weights.values()):
        return model
    found = gather_full_tensors(weights, process_group)
    if not process_group.is_rank_zero:
        return model
    copy = build_without_weights(model.config)  # type: ignore[arg-type]
    copy.load_state_dict(found, assign=True)
    return copy.to(next(model.parameters()).device).train(model.training)
