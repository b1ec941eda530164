"""Who is who among processes, and which share of a step is whose."""

from __future__ import annotations

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from heedful.data.batching import PairBatch, TextBatch
from heedful.errors import HeedfulError, UsageError
from heedful.training.distributed.heartbeat import Pulse, patience
from heedful.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from heedful.training.distributed.rank import RankInfo, rank_from_environment, first_slurm_node


def world(rank: int, size: int) -> ProcessGroup:
    found = ProcessGroup()
    found.rank, found.size = rank, size
    return found


def batch(rows: int) -> TextBatch:
    tokens = torch.arange(1, 1 + rows * 3).view(rows, 3)
    return TextBatch(tokens, tokens + 1)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("rows", [1, 2, 5, 8])
@pytest.mark.parametrize("batches", [1, 2, 3, 4])
def test_shares_make_up_the_step_whatever_the_number_of_processes(size: int, rows: int, batches: int) -> None:
    step = [batch(rows + i) for i in range(batches)]
    shares = [world(rank, size).local_batches(step) for rank in range(size)]
    assert len({len(share) for share in shares}) == 1, "each goes forward and back as often as the others"
    found = sorted(row for share in shares for part in share for row in part.labels.tolist() if any(row))
    assert found == sorted(row for part in step for row in part.labels.tolist())


def test_a_process_without_rows_has_one_with_nothing_to_learn() -> None:
    pair = PairBatch(torch.ones(1, 4).long(), torch.tensor([4]), torch.ones(1, 2).long(), torch.ones(1, 2).long())
    (share,) = world(2, 3).local_batches([pair])
    assert share.source.shape == (1, 4)
    assert share.source_lengths.tolist() == [4]
    assert not share.labels.any()


def test_each_process_drops_other_values_and_the_first_those_of_one_alone() -> None:
    seeds = {world(rank, 8).rank_seed((1 << 32) + 7) for rank in range(8)}
    assert len(seeds) == 8
    assert world(0, 8).rank_seed(5) == SINGLE_PROCESS.rank_seed(5) == 5
    torch.manual_seed(max(seeds))


SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "12345"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "77"}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"}, None),
        (TORCHRUN, RankInfo(3, 4, 1, "a", 77)),
        ({**SLURM, **TORCHRUN}, RankInfo(3, 4, 1, "a", 77)),
        ({**SLURM, "MASTER_ADDR": "b", "MASTER_PORT": "78"}, RankInfo(5, 8, 1, "b", 78)),
        ({**SLURM, "SLURM_JOB_NODELIST": "gpu[03-04],cpu1"}, RankInfo(5, 8, 1, "gpu03", 29745)),
    ],
)
def test_torchrun_or_slurm_says_which_process_this_is(environment: dict[str, str], place: RankInfo | None) -> None:
    assert rank_from_environment(environment) == place


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({**SLURM, "SLURM_PROCID": "x"}, "SLURM_PROCID and their like must be numbers: .*'x'"),
        ({**TORCHRUN, "RANK": "4"}, "rank 4 of 4 processes: RANK or SLURM_PROCID counts them from 0"),
    ],
)
def test_a_place_that_is_none_is_named(environment: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        rank_from_environment(environment)


def test_whoever_does_not_come_is_waited_for_told_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("heedful.training.distributed.heartbeat.WARN_AFTER", 0.0)
    with pytest.raises(HeedfulError, match="of 3 processes, rank 1, 2 did not come within 0 s"):
        Pulse(HashStore(), 0, 3).roll_call(0.1)
    assert capsys.readouterr().err == "waiting for rank 1, 2 of 3 processes: srun or torchrun starts them all\n"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("one", "one"), ("a1,a2", "a1"), ("gpu[03-05,9]", "gpu03"), ("g[7]-ib,h[1-2]", "g7-ib"), ("n-1-[2,4]", "n-1-2")],
)
def test_the_first_of_slurms_nodes_is_where_processes_meet(nodes: str, first: str) -> None:
    assert first_slurm_node(nodes) == first


@pytest.mark.parametrize("said", ["soon", "0", "-3"])
def test_a_time_out_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv("HEEDFUL_TIMEOUT", said)
    with pytest.raises(UsageError, match=f"HEEDFUL_TIMEOUT is a number of seconds, not '{said}'"):
        patience()
