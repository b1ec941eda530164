"""The studio opens nothing outside the folders it was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.errors import UsageError
from heedful.studio.workspace import MAX_FILES, Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    for name in ("runs", "texts/deep", "secret"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("texts/a.en", "texts/deep/b.txt", "secret/key.txt", "texts/.hidden.txt", "texts/picture.png"):
        (tmp_path / name).write_text("line\n")
    (tmp_path / "texts/link.txt").symlink_to(tmp_path / "secret/key.txt")
    return Workspace(tmp_path / "runs", (tmp_path / "texts",))


def test_files_are_listed_by_names_that_resolve(workspace: Workspace, tmp_path: Path) -> None:
    names = [file["name"] for file in workspace.files()]
    assert names == ["1/a.en", "1/deep/b.txt"]
    assert workspace.resolve("1/deep/b.txt") == tmp_path / "texts/deep/b.txt"


def test_a_folder_within_another_is_listed_once_and_results_of_runs_not_at_all(
    workspace: Workspace, tmp_path: Path
) -> None:
    (tmp_path / "texts/lab/study/trials").mkdir(parents=True)
    (tmp_path / "texts/lab/study/results.json").write_text("{}")
    (tmp_path / "texts/model").mkdir()
    for name in ("recipe.toml", "card.txt"):
        (tmp_path / "texts/model" / name).write_text("")
    nested = Workspace(tmp_path / "texts", (tmp_path / "texts/deep",))
    assert [file["name"] for file in nested.files()] == ["0/a.en", "0/deep/b.txt"]


def test_a_linked_folder_is_neither_written_to_nor_a_run(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "secret/recipe.toml").write_text("")
    for name in ("pasted", "run"):
        (workspace.folder / name).symlink_to(tmp_path / "secret")
    with pytest.raises(UsageError, match="is a link"):
        workspace.save_pasted("mine.tsv", "a\tb")
    assert not (tmp_path / "secret/mine.tsv").exists()
    with pytest.raises(UsageError, match="no such run"):
        workspace.run_folder("run")


OUTSIDE = (
    "1/../secret/key.txt",
    "1/link.txt",
    "0/../secret/key.txt",
    "2/a.en",
    "a.en",
    "1/",
    "/etc/passwd",
    "1//etc/passwd",
    "1/.hidden.txt",
    "1/picture.png",
    "1/a.en\0",
    "1/\ud800",
    "²/a.en",
    "9" * 5000 + "/a.en",
    "1/" + "x" * 5000,
)


@pytest.mark.parametrize("name", OUTSIDE)
def test_nothing_outside_the_folders_resolves(workspace: Workspace, name: str) -> None:
    with pytest.raises(UsageError, match="not in the studio's folders"):
        workspace.resolve(name)


def test_pasted_text_becomes_a_file_that_can_be_chosen(workspace: Workspace) -> None:
    name = workspace.save_pasted("mine.tsv", "a\tb")
    assert workspace.resolve(name).read_text() == "a\tb\n"
    assert workspace.resolve(workspace.save_pasted("mine.txt", "to be")).read_text() == "to be\n"
    assert len(workspace.files()) == 4
    with pytest.raises(UsageError, match="another text called"):
        workspace.save_pasted("mine.tsv", "c\td")
    assert workspace.resolve(name).read_text() == "a\tb\n"
    for bad in ("../x.txt", "mine.py", "mine.txt.gz", ".x.txt", "a/b.txt", "x" * 80, ""):
        with pytest.raises(UsageError):
            workspace.save_pasted(bad, "text")


def test_a_runs_name_is_a_plain_name_that_is_free(workspace: Workspace) -> None:
    assert workspace.new_run_folder("run-1").name == "run-1"
    (workspace.folder / "run-1").mkdir()
    for bad in ("run-1", "../run", "a/b", "", "."):
        with pytest.raises(UsageError):
            workspace.new_run_folder(bad)
    with pytest.raises(UsageError):
        workspace.run_folder("run-1")  # it has no recipe


def test_pasted_text_is_listed_beside_any_number_of_files(tmp_path: Path) -> None:
    for number in range(MAX_FILES):
        (tmp_path / f"{number}.txt").touch()
    workspace = Workspace(tmp_path)
    name = workspace.save_pasted("mine.txt", "text")
    assert workspace.resolve(name).read_text() == "text\n"
    assert len(workspace.files()) == MAX_FILES
