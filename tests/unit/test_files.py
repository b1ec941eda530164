"""Atomic writes: a target is complete, old or new, whatever interrupts; checksums find every kind of damage."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from heedful import files
from heedful.errors import CheckpointError, UsageError
from heedful.files import (
    MANIFEST,
    Checksum,
    atomic_file,
    commit_folder,
    new_folder,
    remove_abandoned,
    require_empty,
    verify_manifest,
    write_atomic,
    write_manifest,
)


def write_half(temporary: Path) -> None:
    temporary.write_text("half")
    raise KeyboardInterrupt


def test_write_atomic_replaces_the_file_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_atomic(file, "old")
    write_atomic(file, "nöu")
    assert file.read_bytes() == "nöu".encode()
    write_atomic(file, b"\xff")
    assert file.read_bytes() == b"\xff"
    assert list(tmp_path.iterdir()) == [file]


def test_failed_atomic_file_keeps_the_old_content(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_atomic(file, "old")
    with pytest.raises(KeyboardInterrupt), atomic_file(file) as temporary:
        write_half(temporary)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_partial_file_is_kept_on_error_and_renamed_on_success(tmp_path: Path) -> None:
    file, partial = tmp_path / "a.txt", tmp_path / "a.part.txt"
    with pytest.raises(KeyboardInterrupt), atomic_file(file, partial=partial) as temporary:
        write_half(temporary)
    assert [path.name for path in tmp_path.iterdir()] == ["a.part.txt"]
    with atomic_file(file, partial=partial) as temporary:
        temporary.write_text("all")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_content_is_synced_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(files, "fsync", lambda path: synced.append(path.name))
    write_atomic(tmp_path / "a.txt", "text")
    assert synced == ["a.txt.tmp"]
    synced.clear()
    with new_folder(tmp_path / "folder") as temporary:
        (temporary / "inside").write_text("text")
        assert not (tmp_path / "folder").exists()
    assert synced == ["inside", temporary.name, tmp_path.name]  # files, the folder, then its parent


def test_new_folder_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "folder"
    with pytest.raises(KeyboardInterrupt), new_folder(target) as temporary:
        write_half(temporary / "a")
    assert list((tmp_path / "deep").iterdir()) == []
    for content in ("first", "second"):
        with new_folder(target) as temporary:
            (temporary / content).write_text(content)
    assert [path.name for path in target.iterdir()] == ["second"]
    assert list((tmp_path / "deep").iterdir()) == [target]


def test_commit_folder_never_leaves_half_of_the_replaced_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "target", tmp_path / "new"
    old.mkdir()
    (old / "a").write_text("old")
    new.mkdir()
    (new / "a").write_text("new")
    monkeypatch.setattr(files.shutil, "rmtree", lambda *_, **__: None)  # killed before the old one is removed
    commit_folder(new, old)
    assert (old / "a").read_text() == "new"
    assert (old / files.REPLACED / "a").read_text() == "old"


def test_killed_process_leaves_the_target_alone_and_its_temporary_folder_goes_next_time(tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from heedful.files import new_folder
with new_folder(Path(sys.argv[1])) as temporary:
    (temporary / "a").write_text("half")
    os.kill(os.getpid(), 9)
"""
    target = tmp_path / "folder"
    process = subprocess.run([sys.executable, "-c", script, str(target)], check=False)
    assert process.returncode == -9
    assert not target.exists()
    assert len(list(tmp_path.iterdir())) == 1
    with new_folder(target) as temporary:
        (temporary / "a").write_text("all")
    assert list(tmp_path.iterdir()) == [target]


def test_only_temporary_folders_of_dead_processes_of_this_host_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = platform.node()
    names = [f"one.{host}.{dead.pid}.tmp", f"two.{host}.{dead.pid}.tmp", f"one.{host}.{os.getppid()}.tmp"]
    names += [f"one.elsewhere.{dead.pid}.tmp", f"one.{host}.x.tmp", f"one.{host}.{10**30}.tmp", "one.tmp"]
    for name in names:
        (tmp_path / name).mkdir()
    remove_abandoned(tmp_path, "one")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])
    remove_abandoned(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[2:])


def test_require_empty_accepts_missing_and_empty_folders_only(tmp_path: Path) -> None:
    require_empty(tmp_path)
    require_empty(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file is a file; choose a new folder"):
        require_empty(tmp_path / "file")
    with pytest.raises(UsageError, match="exists and is not empty; choose another folder"):
        require_empty(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name * 10)
    write_manifest(tmp_path, ("a", "b"), {"c": files.checksum_of(tmp_path / "c")})
    verify_manifest(tmp_path)
    return tmp_path


def test_manifest_holds_size_and_sha256(folder: Path) -> None:
    entries = json.loads((folder / MANIFEST).read_text())
    assert entries.keys() == {"a", "b", "c"}
    assert Checksum(**entries["a"]) == Checksum(10, "bf2cb58a68f684d95a3b78ef8f661c9a4e5b09e82cc8f9cc88cce90528caeb27")


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_damaged_file_is_named(folder: Path, name: str) -> None:
    file = folder / name
    file.write_text(name * 9 + "x")
    with pytest.raises(CheckpointError, match=f"{name} is damaged: its SHA-256 differs from the manifest's"):
        verify_manifest(folder)
    file.write_text(name * 9)
    with pytest.raises(CheckpointError, match=f"{name} has 9 bytes, its manifest says 10"):
        verify_manifest(folder)
    file.unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        verify_manifest(folder)
    verify_manifest(folder, {"a", "b", "c"} - {name})


@pytest.mark.parametrize("content", [None, "", "[]", "{", '{"a": 1}', '{"a": {"size": 10}}', "[" * 100_000])
def test_damaged_manifest_is_refused(folder: Path, content: str | None) -> None:
    (folder / MANIFEST).unlink()
    if content is not None:
        (folder / MANIFEST).write_text(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json is missing or damaged"):
        verify_manifest(folder)


def test_file_that_the_manifest_does_not_list_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"manifest\.json is missing or damaged"):
        verify_manifest(folder, ["a", "other"])
