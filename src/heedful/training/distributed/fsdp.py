"""Sharded data parallelism (torch's FSDP2): each rank holds a shard of every weight, its gradient and optimizer state.

The weights of a block are gathered when it runs and freed afterwards; those outside of blocks stay gathered for the
length of a step. Checkpoints are written and read as shards; only a model to be evaluated or saved for use is
assembled, on rank 0.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.layers.block import Block
from heedful.model_folder import build_on_meta
from heedful.models.recurrent_network import Recurrence
from heedful.training.checkpoint.sharded_tensors import SliceableTensor, Slices, TensorShard, is_sharded
from heedful.training.distributed.process_group import ProcessGroup

FORWARD_METHODS = ("teacher_forced_states", "states")
"""Methods through which objectives call a model. FSDP hooks the first that a model has: each hooked call would gather
the weights again."""


def shard_model(model: nn.Module, process_group: ProcessGroup, device: torch.device) -> None:
    """Shard every weight over all ranks. Memory for weights on the meta device is allocated for the shards only."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device.type, (process_group.size,))
    for module in [*(module for module in model.modules() if isinstance(module, Block | Recurrence)), model]:
        fully_shard(module, mesh=mesh, reshard_after_forward=module is not model)
    register_fsdp_forward_method(model, next(name for name in FORWARD_METHODS if hasattr(model, name)))
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Gradients are summed, not averaged: the loss is divided by target tokens. Gloo has no averaging reduction.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    if any(weight.is_meta for weight in model.parameters()):
        model.to_empty(device=device)


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor, on all ranks together; any other is returned as it is."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def local_slices(tensor: SliceableTensor) -> Slices:
    """The slices of a tensor that this rank holds: all of it, unless it is sharded."""
    slices = [slice(0, length) for length in tensor.shape]
    if is_sharded(tensor):
        from torch.distributed.tensor import Shard

        (placement,) = tensor.placements
        assert isinstance(placement, Shard)
        length, mesh = tensor.shape[placement.dim], tensor.device_mesh
        shard_length = -(-length // mesh.size())
        start = min(length, shard_length * mesh.get_local_rank())
        slices[placement.dim] = slice(start, min(length, start + shard_length))
    return tuple(slices)


def local_shard(tensor: SliceableTensor) -> TensorShard:
    """This rank's part of a tensor, with its offsets in the full tensor."""
    slices = local_slices(tensor)
    values = tensor.to_local().detach() if is_sharded(tensor) else tensor[slices]
    return TensorShard(values, tuple(part.start for part in slices), tuple(tensor.shape))


def shard_like(tensor: SliceableTensor, like: Tensor) -> Tensor:
    """Copy a full tensor into a new one with the device and sharding of `like`; only this rank's slices are read."""
    if tensor.shape != like.shape:  # optimizer state with one number per weight, for example
        return local_shard(tensor).tensor.to(like.device, copy=True)
    result = torch.empty_like(like, dtype=tensor.dtype)
    local_shard(result).tensor.copy_(tensor[local_slices(result)])
    return result


def unsharded_model(model: nn.Module, process_group: ProcessGroup) -> nn.Module:
    """The model for evaluation and saving: if it is sharded, rank 0 gets a full copy, assembled tensor by tensor."""
    if not any(map(is_sharded, model.parameters())):
        return model
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if not process_group.is_rank_zero:
        return model
    copy = build_on_meta(model.config)  # type: ignore[arg-type]
    copy.load_state_dict(weights, assign=True)
    return copy.to(next(model.parameters()).device).train(model.training)
