"""Weights in shards: each process keeps a part of every weight, its gradient and optimizer state (FSDP2).

Blocks are gathered when they run and let go of after; what lies outside of blocks is gathered for the length of a
step. All else sees weights of their usual names and shapes, and files never hold anything but whole ones.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.layers.block import Block
from heedful.models.build import build
from heedful.models.recurrent import Recurrence
from heedful.training.world import World, is_cut

ENTRANCES = ("forced_states", "states")
"""Where an objective enters a model. Only the first that a model has: a step must gather its weights once."""


def shard(model: nn.Module, world: World) -> None:
    """Cut every weight into as many parts as there are processes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    device = next(model.parameters()).device
    mesh = init_device_mesh(device.type, (world.size,))
    for part in [*(part for part in model.modules() if isinstance(part, Block | Recurrence)), model]:
        fully_shard(part, mesh=mesh, reshard_after_forward=part is not model)
    entrance = next(name for name in ENTRANCES if hasattr(model, name))
    register_fsdp_forward_method(model, entrance)
    for part in model.modules():
        if isinstance(part, FSDPModule):
            # A sum, as the loss is: it is divided by labels, not by processes. By the plain sum that gloo knows, too.
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)


def whole(tensor: Tensor) -> Tensor:
    """A tensor put together from its shards, by all processes at once; one that has none, as it is."""
    return tensor.full_tensor() if is_cut(tensor) else tensor


def gather(tensors: dict[str, Tensor], world: World) -> dict[str, Tensor]:
    """Tensors in one piece: those that are cut, one after the other, into the first process's main memory."""
    found = {}
    for name, tensor in tensors.items():
        full = whole(tensor)
        if not is_cut(tensor):
            found[name] = full
        elif world.is_first:
            found[name] = full.cpu()
    return found


def placed(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor where and as `like` is: on its device, and cut if that is."""
    there = tensor.to(like.device)
    if not is_cut(like) or tensor.shape != like.shape:
        return there
    from torch.distributed.tensor import distribute_tensor

    cut = distribute_tensor(there, like.device_mesh, like.placements, src_data_rank=None)
    return cut.clone()  # a part of the whole would keep all of it in memory


def whole_model(model: nn.Module, world: World) -> nn.Module:
    """The model itself; or, if it is cut, in the first process a copy in one piece: for evaluation and saving."""
    weights = model.state_dict()
    if not any(is_cut(weight) for weight in weights.values()):
        return model
    found = gather(weights, world)
    if not world.is_first:
        return model
    with torch.device("meta"):
        copy: nn.Module = build(model.config)  # type: ignore[arg-type]
    copy.load_state_dict(found, assign=True)
    return copy.to(next(model.parameters()).device).train(model.training)
