"""Shares of a step, rank and world size from the environment, and the store that names missing ranks."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from heedful.data.pair_dataset import PairBatch
from heedful.data.text_dataset import TextBatch
from heedful.errors import HeedfulError, UsageError
from heedful.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from heedful.training.distributed.rank import RankInfo, first_slurm_node, rank_from_environment
from heedful.training.distributed.rank_store import LostRankError, RankStore, collective_timeout


def group_of(rank: int, size: int) -> ProcessGroup:
    group = ProcessGroup()
    group.rank, group.size = rank, size
    return group


def batch(rows: int) -> TextBatch:
    tokens = torch.arange(1, 1 + rows * 3).view(rows, 3)
    return TextBatch(tokens, tokens + 1)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("rows", [1, 2, 5, 8])
@pytest.mark.parametrize("batches", [1, 2, 3, 4])
def test_shares_of_all_ranks_add_up_to_the_step(size: int, rows: int, batches: int) -> None:
    step = [batch(rows + i) for i in range(batches)]
    shares = [group_of(rank, size).local_batches(step) for rank in range(size)]
    assert len({len(share) for share in shares}) == 1, "every rank runs the same number of backward passes"
    labels = sorted(row for share in shares for part in share for row in part.labels.tolist() if any(row))
    assert labels == sorted(row for part in step for row in part.labels.tolist())


def test_a_rank_without_rows_gets_a_row_without_labels() -> None:
    pair = PairBatch(torch.ones(1, 4).long(), torch.tensor([4]), torch.ones(1, 2).long(), torch.ones(1, 2).long())
    (share,) = group_of(2, 3).local_batches([pair])
    assert share.source.shape == (1, 4)
    assert share.source_lengths.tolist() == [4]
    assert not share.labels.any()


def test_dropout_seeds_differ_between_ranks_and_rank_zero_has_that_of_a_single_process() -> None:
    seeds = {group_of(rank, 8).rank_seed((1 << 32) + 7) for rank in range(8)}
    assert len(seeds) == 8
    assert group_of(0, 8).rank_seed(5) == SINGLE_PROCESS.rank_seed(5) == 5
    torch.manual_seed(max(seeds))


SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "12345"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "77"}


@pytest.mark.parametrize(
    ("environment", "info"),
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
def test_rank_and_world_size_come_from_torchrun_or_slurm(environment: dict[str, str], info: RankInfo | None) -> None:
    assert rank_from_environment(environment) == info


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({**SLURM, "SLURM_PROCID": "x"}, "SLURM_PROCID and the like must be integers: .*'x'"),
        ({**TORCHRUN, "RANK": "4"}, "rank 4 of 4 processes: RANK or SLURM_PROCID must be below that number"),
    ],
)
def test_an_invalid_rank_is_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rank_from_environment(environment)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("one", "one"), ("a1,a2", "a1"), ("gpu[03-05,9]", "gpu03"), ("g[7]-ib,h[1-2]", "g7-ib"), ("n-1-[2,4]", "n-1-2")],
)
def test_the_first_slurm_node_hosts_rank_zero(nodes: str, first: str) -> None:
    assert first_slurm_node(nodes) == first


@pytest.mark.parametrize("text", ["soon", "0", "-3"])
def test_an_invalid_timeout_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("HEEDFUL_TIMEOUT", text)
    with pytest.raises(UsageError, match=f"HEEDFUL_TIMEOUT must be a positive number of seconds, got '{text}'"):
        collective_timeout()


def test_ranks_that_do_not_join_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("heedful.training.distributed.rank_store.WARN_AFTER", 0.0)
    with pytest.raises(HeedfulError, match="rank 1, rank 2 of 3 ranks did not join within 0 s"):
        RankStore(HashStore(), 0, 3).join(0.1)
    assert capsys.readouterr().err == "waiting for rank 1, rank 2 of 3 ranks: start all of them with srun or torchrun\n"


def test_values_of_all_ranks_are_gathered_in_order() -> None:
    store = HashStore()
    other = RankStore(store, 1, 2)
    thread = threading.Thread(target=other.all_gather, args=("b",))
    thread.start()
    assert RankStore(store, 0, 2).all_gather("a") == ["a", "b"]
    thread.join()


def test_a_rank_that_does_not_finish_its_share_of_work_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEEDFUL_TIMEOUT", "0.01")
    store = RankStore(HashStore(), 0, 2)
    with pytest.raises(LostRankError, match=r"rank 1 died or has not answered for 0\.01 s \(HEEDFUL_TIMEOUT\)"):
        store.all_gather(None)


def test_a_rank_without_heartbeat_is_named_after_one_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed rank is named, and one that still works on its share is not."""
    monkeypatch.setenv("HEEDFUL_TIMEOUT", "0.5")
    store = HashStore()
    stores = [RankStore(store, rank, 3) for rank in range(3)]
    joins = [threading.Thread(target=store.join) for store in stores]
    for join in joins:
        join.start()
    for join in joins:
        join.join()
    stores[1].close()
    start = time.monotonic()
    with pytest.raises(LostRankError, match=r"^rank 1 on \S+ died or has not answered for 0\.5 s"):
        stores[0].all_gather(None)
    assert time.monotonic() - start < 3  # long before the WORK_TIMEOUTS that a live rank has
    for store in stores:
        store.close()


def test_a_failed_rank_ends_the_waits_of_others_with_its_reason() -> None:
    store = HashStore()
    RankStore(store, 1, 2).explain(HeedfulError("disk full"))
    with pytest.raises(LostRankError, match=r"rank 1 on .* failed: disk full"):
        RankStore(store, 0, 2).all_gather(None)


class UnresponsiveStore(HashStore):
    """A store whose host is suspended: its answers never come."""

    def check(self, keys: list[str]) -> bool:
        threading.Event().wait()
        return False


def test_a_store_that_does_not_answer_names_rank_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEEDFUL_TIMEOUT", "0.1")
    with pytest.raises(LostRankError, match="rank 0 died or has not answered"):
        RankStore(UnresponsiveStore(), 1, 2).broadcast()


def test_a_failed_collective_names_the_ranks_that_do_not_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEEDFUL_TIMEOUT", "0.1")
    store = HashStore()
    store.set("host/2", "node7")
    error = RankStore(store, 0, 3).explain(RuntimeError("gloo: connection closed"))
    assert str(error).startswith("rank 1, rank 2 on node7 died or has not answered for 0.1 s")
