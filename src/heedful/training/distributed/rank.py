"""Rank and world size of a process, from the environment that torchrun or SLURM sets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from heedful.errors import UsageError

DEFAULT_PORT = 29400


@dataclass(frozen=True)
class RankInfo:
    """A process's rank among those that train one model, and the address of rank 0."""

    rank: int
    size: int
    local_rank: int
    """Number of the process on its node, and of its GPU."""
    host: str
    port: int


def rank_from_environment(environment: Mapping[str, str]) -> RankInfo | None:
    """Read torchrun's variables, or else SLURM's; None for a single process."""
    try:
        info = _parse(environment)
    except ValueError as error:
        raise UsageError(f"RANK, WORLD_SIZE, SLURM_PROCID and the like must be integers: {error}") from None
    if info is None or info.size <= 1:
        return None
    if not 0 <= info.rank < info.size:
        raise UsageError(f"rank {info.rank} of {info.size} processes: RANK or SLURM_PROCID must be below that number")
    return info


def _parse(environment: Mapping[str, str]) -> RankInfo | None:
    get = environment.get
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return RankInfo(
            int(environment["RANK"]),
            int(environment["WORLD_SIZE"]),
            int(get("LOCAL_RANK", "0")),
            get("MASTER_ADDR", "localhost"),
            int(get("MASTER_PORT", DEFAULT_PORT)),
        )
    if "SLURM_PROCID" in environment:
        nodes = get("SLURM_STEP_NODELIST", get("SLURM_JOB_NODELIST", "localhost"))
        return RankInfo(
            int(environment["SLURM_PROCID"]),
            int(get("SLURM_STEP_NUM_TASKS", get("SLURM_NTASKS", "1"))),
            int(get("SLURM_LOCALID", "0")),
            get("MASTER_ADDR") or first_slurm_node(nodes),
            int(get("MASTER_PORT", DEFAULT_PORT + int(get("SLURM_JOB_ID", "0")) % 1000)),
        )
    return None


def first_slurm_node(nodes: str) -> str:
    """gpu[03-05,9]-ib,cpu1 → gpu03-ib"""
    match = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\])?([^,\[]*)", nodes)
    return "".join(part or "" for part in match.groups()) if match else nodes
