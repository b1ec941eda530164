"""Which of several processes this is: whoever started them says so in the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from heedful.errors import UsageError

DEFAULT_PORT = 29400


@dataclass(frozen=True)
class RankInfo:
    """Where a process stands among those that train one model, and where they meet."""

    rank: int
    size: int
    local_rank: int
    """Its number on its own machine, which is the number of its GPU."""
    host: str
    port: int


def rank_from_environment(environment: Mapping[str, str]) -> RankInfo | None:
    """As torchrun says, or else SLURM; None: alone."""
    try:
        place = _said_place(environment)
    except ValueError as error:
        raise UsageError(f"RANK, WORLD_SIZE, SLURM_PROCID and their like must be numbers: {error}") from None
    if place is None or place.size <= 1:
        return None
    if not 0 <= place.rank < place.size:
        raise UsageError(f"rank {place.rank} of {place.size} processes: RANK or SLURM_PROCID counts them from 0")
    return place


def _said_place(environment: Mapping[str, str]) -> RankInfo | None:
    said = environment.get
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return RankInfo(
            int(environment["RANK"]),
            int(environment["WORLD_SIZE"]),
            int(said("LOCAL_RANK", "0")),
            said("MASTER_ADDR", "localhost"),
            int(said("MASTER_PORT", DEFAULT_PORT)),
        )
    if "SLURM_PROCID" in environment:
        return RankInfo(
            int(environment["SLURM_PROCID"]),
            int(said("SLURM_STEP_NUM_TASKS", said("SLURM_NTASKS", "1"))),
            int(said("SLURM_LOCALID", "0")),
            said("MASTER_ADDR") or first_slurm_node(said("SLURM_STEP_NODELIST", said("SLURM_JOB_NODELIST", "localhost"))),
            int(said("MASTER_PORT", DEFAULT_PORT + int(said("SLURM_JOB_ID", "0")) % 1000)),
        )
    return None


def first_slurm_node(nodes: str) -> str:
    """gpu[03-05,9]-ib,cpu1 → gpu03-ib"""
    found = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\])?([^,\[]*)", nodes)
    return "".join(part or "" for part in found.groups()) if found else nodes
