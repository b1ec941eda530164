"""Model folders: a round trip is exact, and every kind of damage is an error that names the file."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful import CheckpointError, HeedfulError, UsageError, build, load
from heedful.model_files import ModelFiles
from heedful.model_folder import load_model as load_files
from heedful.model_folder import save

CONFIG, WEIGHTS, MANIFEST = "config.json", "model.safetensors", "manifest.json"
SMALL: dict[str, Any] = {"vocabulary": 20, "width": 16}
DESIGNS: dict[str, tuple[str, dict[str, Any]]] = {
    "encoder": ("bert-tiny", {**SMALL, "max_length": 8, "tasks": ("masked_token", "sequence_class"), "classes": 3}),
    "decoder": ("laptop-writer", {**SMALL, "layers": 2}),
    "separate output": ("llama-7b", {**SMALL, "layers": 2, "heads": 2, "feed_forward": 24}),
    "encoder_decoder": ("laptop-translator", {**SMALL, "layers": 1, "target_vocabulary": 30}),
    "recurrent_decoder": ("recurrent-writer", SMALL),
    "recurrent_encoder_decoder": ("recurrent-translator", SMALL),
    "bottleneck": ("recurrent-bottleneck", {**SMALL, "cell": "lstm", "tie_output": False}),
}


def load_model(folder: Path) -> Any:
    return load_files(ModelFiles(folder))


def small_model() -> Any:
    return build("laptop-writer", **SMALL, layers=1)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(small_model(), tmp_path_factory.mktemp("models") / "pristine")


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A valid model folder, to be damaged."""
    return Path(shutil.copytree(pristine, tmp_path / "model"))


def load_error(path: Path) -> str:
    """The one-line message of the error that loading this folder raises."""
    with pytest.raises(CheckpointError) as caught:
        load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    assert caught.value.exit_code == 4
    return message


def rewrite_manifest(folder: Path) -> None:
    """Make the manifest agree with changed files, as a forger would."""
    checksums = {}
    for name in (CONFIG, WEIGHTS):
        content = (folder / name).read_bytes()
        checksums[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / MANIFEST).write_text(json.dumps(checksums))


def reconfigure(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, **changes}))
    rewrite_manifest(folder)


# Round trip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("preset", "changes"), DESIGNS.values(), ids=DESIGNS)
def test_a_round_trip_is_exact(preset: str, changes: dict[str, Any], dtype: torch.dtype, tmp_path: Path) -> None:
    model = build(preset, **changes).to(dtype)
    loaded = load_model(save(model, tmp_path / "model"))
    before, after = model.state_dict(), loaded.state_dict()
    assert list(before) == list(after)
    for name, weight in before.items():
        assert weight.dtype == after[name].dtype
        assert torch.equal(weight, after[name])
    assert loaded.config == model.config
    assert type(loaded) is type(model)
    assert not loaded.training


@pytest.mark.parametrize(("preset", "changes"), DESIGNS.values(), ids=DESIGNS)
def test_a_loaded_model_computes_the_same_and_can_be_trained(
    preset: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    model, tokens = build(preset, **changes).eval(), torch.randint(0, 20, (2, 5))
    loaded = load_model(save(model, tmp_path / "model"))
    inputs = (tokens, tokens) if model.config.family.endswith("encoder_decoder") else (tokens,)
    assert torch.equal(model(*inputs), loaded(*inputs))
    loaded.train()(*inputs).sum().backward()
    assert loaded.table.weight.grad is not None
    assert all(weight.requires_grad for weight in loaded.parameters())


def test_a_folder_holds_three_files(folder: Path) -> None:
    assert sorted(os.listdir(folder)) == [CONFIG, MANIFEST, WEIGHTS]
    checksums = json.loads((folder / MANIFEST).read_text())
    content = (folder / WEIGHTS).read_bytes()
    assert checksums[WEIGHTS] == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def test_weights_have_the_permissions_of_the_configuration(folder: Path) -> None:
    assert (folder / WEIGHTS).stat().st_mode == (folder / "config.json").stat().st_mode


def test_a_tied_table_is_stored_once(folder: Path) -> None:
    assert b"next_token" not in (folder / WEIGHTS).read_bytes()


def test_saving_creates_parent_folders(tmp_path: Path) -> None:
    assert load_model(save(small_model(), str(tmp_path / "a" / "b"))).config.width == 16


def test_saving_again_replaces_the_model_and_keeps_other_files(folder: Path) -> None:
    (folder / "card.md").write_text("mine")
    (folder / "saving.tmp").mkdir()
    (folder / "saving.tmp" / WEIGHTS).write_text("left by a save that was killed")
    other = build("recurrent-writer", **SMALL)
    save(other, folder)
    assert torch.equal(load_model(folder).table.weight, other.table.weight)
    assert sorted(os.listdir(folder)) == ["card.md", CONFIG, MANIFEST, WEIGHTS]


def test_saving_over_a_file_is_an_error_and_keeps_it(tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.write_text("mine")
    with pytest.raises(UsageError, match="is a file; a model is saved as a folder"):
        save(small_model(), file)
    assert file.read_text() == "mine"


# Damage


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
def test_one_flipped_bit_anywhere_is_detected(folder: Path, name: str) -> None:
    file = folder / name
    content = file.read_bytes()
    generator = random.Random(0)
    random_positions = [generator.randrange(len(content)) for _ in range(40)]
    for position in (0, 8, len(content) // 2, len(content) - 1, *random_positions):
        damaged = bytearray(content)
        damaged[position] ^= 1 << generator.randrange(8)
        file.write_bytes(damaged)
        assert name in load_error(folder)
    file.write_bytes(content)
    assert load_model(folder)


def test_one_flipped_bit_in_the_manifest_is_detected(folder: Path) -> None:
    """Except in whitespace, which has no meaning."""
    file = folder / MANIFEST
    content = file.read_bytes()
    for position, letter in enumerate(content):
        if not chr(letter).isspace():
            file.write_bytes(content[:position] + bytes([letter ^ 1]) + content[position + 1 :])
            load_error(folder)


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_a_truncated_file_is_named_with_both_sizes(folder: Path, keep: int) -> None:
    file = folder / WEIGHTS
    content = file.read_bytes()
    file.write_bytes(content[:keep])
    message = load_error(folder)
    assert f"{file} has {len(content[:keep])} bytes, its manifest says {len(content)}" in message


def test_trailing_bytes_are_an_error(folder: Path) -> None:
    with (folder / WEIGHTS).open("ab") as stream:
        stream.write(b"\0")
    assert WEIGHTS in load_error(folder)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, MANIFEST])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    message = load_error(folder)
    assert name in message
    assert "missing" in message or "has no" in message


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "3", "{}", '{"config.json": 3, "model.safetensors": 4}', '{"config.json": {"size": 5}}', "\ud800"],
    ids=["empty", "cut off", "a list", "a number", "no entry", "wrong types", "no checksums", "not UTF-8"],
)
def test_a_damaged_manifest_is_named(folder: Path, content: str) -> None:
    (folder / MANIFEST).write_bytes(content.encode("utf-8", "surrogatepass"))
    message = load_error(folder)
    assert re.search(rf"{MANIFEST} is missing or damaged|{CONFIG} is not in {MANIFEST}", message)
    assert f"heedful import {folder} NEW" in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"\xff\xfe\x00", "is not valid JSON"),
        (b"[" * 200_000, "is not valid JSON"),
        (b"[1, 2]", "must hold a JSON object"),
        (b"null", "must hold a JSON object"),
        (b'{"name": "left-pad", "version": "1.0.0"}', "describes no model heedful knows"),
        (b'{"model_type": "resnet"}', "models of type 'resnet' cannot be imported"),
    ],
    ids=["empty", "cut off", "binary", "too deep", "a list", "null", "something else's", "another model's"],
)
def test_an_invalid_configuration_is_named(folder: Path, content: bytes, message: str) -> None:
    (folder / CONFIG).write_bytes(content)
    assert message in load_error(folder)


def test_a_folder_in_place_of_the_configuration_is_named(folder: Path) -> None:
    (folder / CONFIG).unlink()
    (folder / CONFIG).mkdir()
    assert f"{CONFIG} cannot be read" in load_error(folder)


def test_a_path_that_is_not_a_model_folder_is_named(tmp_path: Path) -> None:
    assert load_error(tmp_path / "nowhere").endswith("nowhere is not a model folder: it does not exist")
    assert "it has no config.json" in load_error(tmp_path)
    (tmp_path / "file").write_text("text")
    assert load_error(tmp_path / "file").endswith("file is not a model folder")


# Forgery


class Bomb:
    """Unpickling this creates a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (Path.touch, (self.target,))


@pytest.mark.parametrize("layout", ["heedful", "bert"])
def test_a_pickle_is_an_error_and_never_runs(folder: Path, tmp_path: Path, layout: str) -> None:
    target = tmp_path / "executed"
    (folder / WEIGHTS).write_bytes(pickle.dumps({"table.weight": Bomb(target)}))
    if layout == "bert":
        (folder / CONFIG).write_text(json.dumps({"model_type": "bert"}))
    rewrite_manifest(folder)
    load_error(folder)
    assert not target.exists()
    pickle.loads((folder / WEIGHTS).read_bytes())
    assert target.exists(), "the pickle would have run"


@pytest.mark.parametrize("header", [b"\xff" * 8, (10**9).to_bytes(8, "little"), bytes(8)])
def test_a_header_of_an_impossible_size_is_an_error(folder: Path, header: bytes) -> None:
    (folder / WEIGHTS).write_bytes(header + b"{}" * 20)
    rewrite_manifest(folder)
    load_error(folder)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"width": 32}, "size mismatch"),
        ({"layers": 2}, "decoder.blocks.1"),
        ({"tie_output": False}, "heads.next_token.weight"),
        ({"positions": "learned"}, "embedding.positions.table"),
        ({"family": "encoder"}, "encoder.blocks.0"),
        ({"family": "recurrent_decoder"}, "unknown setting"),
        ({"family": "perceptron"}, "family: input should be"),
        ({"width": -16}, "width: input should be greater than 0, got -16"),
        ({"heads": 5}, "width 16 is not divisible by 5 heads"),
        ({"exec": "rm"}, "unknown setting 'exec'"),
    ],
    ids=lambda value: "" if isinstance(value, str) else ", ".join(f"{k}={v}" for k, v in value.items()),
)
def test_a_configuration_that_does_not_fit_the_weights_is_an_error(
    folder: Path, changes: dict[str, Any], expected: str
) -> None:
    reconfigure(folder, **changes)
    message = load_error(folder)
    assert "weights and configuration do not fit" in message
    assert expected in message


def test_an_edited_configuration_is_detected_even_if_it_would_fit(folder: Path) -> None:
    text = (folder / CONFIG).read_text()
    (folder / CONFIG).write_text(text.replace('"dropout": 0.1', '"dropout": 0.2'))
    assert f"{CONFIG} is damaged: its SHA-256 differs" in load_error(folder)


# Interruption

KILLED_AT_EVERY_STEP = """
import os, shutil, signal, sys
from pathlib import Path
import torch
from heedful import CheckpointError, build
from heedful.model_files import ModelFiles
from heedful.model_folder import load_model, save

torch.set_num_threads(1)
start = sys.argv[1]
new = build("laptop-writer", vocabulary=20, width=16, layers=1)
old = load_model(ModelFiles(Path(start)))

def save_until(step, folder):
    seen = 0
    def count(event, arguments):
        nonlocal seen
        if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"):
            seen += 1
            if seen == step:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(count)
    save(new, folder)

step, finished = 0, False
while not finished:
    step += 1
    folder = shutil.copytree(start, f"{start}-{step}")
    child = os.fork()
    if child == 0:
        save_until(step, folder)
        os._exit(0)
    finished = os.waitpid(child, 0)[1] == 0
    try:
        held = load_model(ModelFiles(Path(folder))).table.weight
        print("old" if torch.equal(held, old.table.weight) else torch.equal(held, new.table.weight) and "new")
    except CheckpointError:
        print("error")
    assert torch.equal(load_model(ModelFiles(save(new, folder))).table.weight, new.table.weight)
    assert sorted(os.listdir(folder)) == ["config.json", "manifest.json", "model.safetensors"]
"""

DISK_FULL = """
import resource, sys
from heedful import HeedfulError, build
from heedful.model_folder import save

resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    save(build("laptop-writer", vocabulary=200, width=64, layers=1), sys.argv[1])
except HeedfulError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def run(fork_server: Any, folder: Path) -> Callable[[str], list[str]]:
    """Run a script on the folder and return the lines it prints."""

    def run_script(script: str) -> list[str]:
        output = folder.with_name("printed")
        done = fork_server.run_script(script, folder, folder=folder.parent, output=output)
        assert done.code == 0, done.output
        return output.read_text().splitlines()

    return run_script


def test_a_save_killed_at_any_step_leaves_the_old_model_the_new_one_or_a_load_error(
    run: Callable[[str], list[str]],
) -> None:
    """An error only between the renames of weights and manifest, and the next save repairs the folder."""
    outcomes = run(KILLED_AT_EVERY_STEP)
    old, errors, new = (outcomes.count(outcome) for outcome in ("old", "error", "new"))
    assert outcomes == ["old"] * old + ["error"] * errors + ["new"] * new
    assert old >= 4
    assert errors == 1
    assert new >= 2


def test_a_full_disk_leaves_the_old_model_and_no_temporary_files(folder: Path, run: Callable[[str], list[str]]) -> None:
    before = {name: (folder / name).read_bytes() for name in os.listdir(folder)}
    (message,) = run(DISK_FULL)
    assert message.startswith(f"{HeedfulError.__name__} {folder}: cannot write the model's ")
    assert {name: (folder / name).read_bytes() for name in os.listdir(folder)} == before
    assert load_model(folder)
