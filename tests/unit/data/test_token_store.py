"""Token stores are complete or absent, and leftovers of killed runs are removed."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from heedful.data.token_store import Sequences, SequencesWriter, create_store, is_intact


def test_failed_store_leaves_nothing(tmp_path: Path) -> None:
    def half() -> None:
        with create_store(tmp_path / "stores" / "one") as temporary:
            (temporary / "ids").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert not list((tmp_path / "stores").iterdir())


def test_leftovers_of_killed_runs_are_removed_and_running_ones_kept(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    killed, running, elsewhere = (
        tmp_path / f"two.{host}.{process}.tmp"
        for host, process in ((platform.node(), dead.pid), (platform.node(), os.getppid()), ("another", dead.pid))
    )
    for left in (killed, running, elsewhere):
        left.mkdir()
    with create_store(tmp_path / "one") as temporary:
        (temporary / "ids").write_text("whole")
    assert (tmp_path / "one" / "ids").read_text() == "whole"
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "one", running, elsewhere])


def written(folder: Path) -> None:
    with create_store(folder) as temporary:
        writer = SequencesWriter(temporary, "text", vocabulary=300)
        writer.write([7, 8, 9])
        writer.close()


@pytest.mark.parametrize("name", ["text.ids", "text.ends", "text.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flipped", "empty", "missing", "a folder"])
def test_damaged_store_is_rewritten(tmp_path: Path, name: str, damage: str) -> None:
    folder = tmp_path / "abc"
    assert not is_intact(folder)
    written(folder)
    assert is_intact(folder)
    data = bytearray((folder / name).read_bytes())
    data[-1] ^= 1
    (folder / name).unlink()
    if damage == "a folder":
        (folder / name).mkdir()
    elif damage != "missing":
        (folder / name).write_bytes(data if damage == "flipped" else b"")
    assert not is_intact(folder)
    written(folder)
    assert is_intact(folder)
    assert Sequences.open(folder, "text")[0].tolist() == [7, 8, 9]
    assert [path.name for path in tmp_path.iterdir()] == ["abc"]
    assert not (folder / "damaged").exists()
