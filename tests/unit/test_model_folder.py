"""A model folder: what was saved comes back exactly, or a line says what is wrong."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful import CheckpointError, HeedfulError, UsageError, build
from heedful.model_folder import load_model, save

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


def small_model() -> Any:
    return build("laptop-writer", **SMALL, layers=1)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(small_model(), tmp_path_factory.mktemp("models") / "pristine")


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A sound model folder, to be damaged."""
    return Path(shutil.copytree(pristine, tmp_path / "model"))


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_model(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    assert caught.value.exit_code == 4
    return message


def sign_again(folder: Path) -> None:
    """What a forger does: a manifest that agrees with the damage."""
    sums = {}
    for name in (CONFIG, WEIGHTS):
        content = (folder / name).read_bytes()
        sums[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / MANIFEST).write_text(json.dumps(sums))


def reconfigure(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, **changes}))
    sign_again(folder)


# There and back


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("preset", "changes"), DESIGNS.values(), ids=DESIGNS)
def test_what_was_saved_comes_back_exactly(
    preset: str, changes: dict[str, Any], dtype: torch.dtype, tmp_path: Path
) -> None:
    model = build(preset, **changes).to(dtype)
    again = load_model(save(model, tmp_path / "model"))
    before, after = model.state_dict(), again.state_dict()
    assert list(before) == list(after)
    for name, weight in before.items():
        assert weight.dtype == after[name].dtype
        assert torch.equal(weight, after[name])
    assert again.config == model.config
    assert type(again) is type(model)
    assert not again.training


@pytest.mark.parametrize(("preset", "changes"), DESIGNS.values(), ids=DESIGNS)
def test_a_loaded_model_computes_the_same_and_can_go_on_learning(
    preset: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    model, tokens = build(preset, **changes).eval(), torch.randint(0, 20, (2, 5))
    again = load_model(save(model, tmp_path / "model"))
    inputs = (tokens, tokens) if model.config.family.endswith("encoder_decoder") else (tokens,)
    assert torch.equal(model(*inputs), again(*inputs))
    again.train()(*inputs).sum().backward()
    assert again.table.weight.grad is not None
    assert all(weight.requires_grad for weight in again.parameters())


def test_a_folder_holds_three_files_and_no_leftovers(folder: Path) -> None:
    assert sorted(os.listdir(folder)) == [CONFIG, MANIFEST, WEIGHTS]
    sums = json.loads((folder / MANIFEST).read_text())
    content = (folder / WEIGHTS).read_bytes()
    assert sums[WEIGHTS] == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def test_who_may_read_the_configuration_may_read_the_weights(folder: Path) -> None:
    assert (folder / WEIGHTS).stat().st_mode == (folder / "config.json").stat().st_mode


def test_a_tied_table_is_stored_once(folder: Path) -> None:
    assert b"next_token" not in (folder / WEIGHTS).read_bytes()


def test_saving_makes_the_folders_on_the_way(tmp_path: Path) -> None:
    assert load_model(save(small_model(), str(tmp_path / "a" / "b"))).config.width == 16


def test_saving_again_replaces_the_model_and_keeps_what_lies_beside_it(folder: Path) -> None:
    (folder / "card.md").write_text("mine")
    (folder / "saving.tmp").mkdir()
    (folder / "saving.tmp" / WEIGHTS).write_text("left by a save that was killed")
    other = build("recurrent-writer", **SMALL)
    save(other, folder)
    assert torch.equal(load_model(folder).table.weight, other.table.weight)
    assert sorted(os.listdir(folder)) == ["card.md", CONFIG, MANIFEST, WEIGHTS]


def test_a_file_where_the_folder_should_go_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.write_text("mine")
    with pytest.raises(UsageError, match="is a file; a model is saved as a folder"):
        save(small_model(), file)
    assert file.read_text() == "mine"


# Damage


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
def test_one_flipped_bit_anywhere_is_found(folder: Path, name: str) -> None:
    file = folder / name
    content = file.read_bytes()
    draw = random.Random(0)
    places = [0, 8, len(content) // 2, len(content) - 1, *(draw.randrange(len(content)) for _ in range(40))]
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << draw.randrange(8)
        file.write_bytes(damaged)
        assert name in refusal(folder)
    file.write_bytes(content)
    assert load_model(folder)


def test_one_flipped_bit_in_the_manifest_is_found(folder: Path) -> None:
    """Unless it falls where it says the same: in white space, or within a sum's other spelling."""
    file = folder / MANIFEST
    content = file.read_bytes()
    for place, letter in enumerate(content):
        if not chr(letter).isspace():
            file.write_bytes(content[:place] + bytes([letter ^ 1]) + content[place + 1 :])
            refusal(folder)


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_a_truncated_file_is_named_with_both_sizes(folder: Path, keep: int) -> None:
    file = folder / WEIGHTS
    content = file.read_bytes()
    file.write_bytes(content[:keep])
    message = refusal(folder)
    assert f"{file} has {len(content[:keep])} bytes, its manifest says {len(content)}" in message


def test_a_file_with_something_after_its_end_is_refused(folder: Path) -> None:
    with (folder / WEIGHTS).open("ab") as stream:
        stream.write(b"\0")
    assert WEIGHTS in refusal(folder)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, MANIFEST])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    message = refusal(folder)
    assert name in message
    assert "missing" in message or "has no" in message


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "3", "{}", '{"config.json": 3, "model.safetensors": 4}', '{"config.json": {"size": 5}}', "\ud800"],
    ids=["empty", "cut off", "a list", "a number", "nothing", "wrong kinds", "no sums", "not UTF-8"],
)
def test_a_damaged_manifest_is_named(folder: Path, content: str) -> None:
    (folder / MANIFEST).write_bytes(content.encode("utf-8", "surrogatepass"))
    assert f"{MANIFEST} is missing or damaged" in refusal(folder)


@pytest.mark.parametrize(
    ("content", "said"),
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
def test_a_configuration_that_is_not_one_is_named(folder: Path, content: bytes, said: str) -> None:
    (folder / CONFIG).write_bytes(content)
    assert said in refusal(folder)


def test_a_configuration_that_is_a_folder_is_named(folder: Path) -> None:
    (folder / CONFIG).unlink()
    (folder / CONFIG).mkdir()
    assert f"{CONFIG} cannot be read" in refusal(folder)


def test_what_is_not_a_folder_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nowhere").endswith("nowhere is not a model folder: it does not exist")
    assert "it has no config.json" in refusal(tmp_path)
    (tmp_path / "file").write_text("text")
    assert refusal(tmp_path / "file").endswith("file is not a model folder")


# Forgery


class Bomb:
    """A pickle that writes a file when opened."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (Path.touch, (self.target,))


@pytest.mark.parametrize("layout", ["ours", "bert"])
def test_a_pickle_is_refused_and_never_runs(folder: Path, tmp_path: Path, layout: str) -> None:
    target = tmp_path / "exploded"
    (folder / WEIGHTS).write_bytes(pickle.dumps({"table.weight": Bomb(target)}))
    if layout == "bert":
        (folder / CONFIG).write_text(json.dumps({"model_type": "bert"}))
    sign_again(folder)
    refusal(folder)
    assert not target.exists()
    pickle.loads((folder / WEIGHTS).read_bytes())
    assert target.exists(), "the bomb was a real one"


@pytest.mark.parametrize("header", [b"\xff" * 8, (10**9).to_bytes(8, "little"), bytes(8)])
def test_a_header_of_an_impossible_size_is_refused(folder: Path, header: bytes) -> None:
    (folder / WEIGHTS).write_bytes(header + b"{}" * 20)
    sign_again(folder)
    refusal(folder)


@pytest.mark.parametrize(
    ("changes", "said"),
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
def test_a_configuration_that_does_not_fit_the_weights_is_refused(
    folder: Path, changes: dict[str, Any], said: str
) -> None:
    reconfigure(folder, **changes)
    message = refusal(folder)
    assert "weights and configuration do not fit" in message
    assert said in message


def test_an_edited_configuration_is_found_even_if_it_would_fit(folder: Path) -> None:
    text = (folder / CONFIG).read_text()
    (folder / CONFIG).write_text(text.replace('"dropout": 0.1', '"dropout": 0.2'))
    assert f"{CONFIG} is damaged: its SHA-256 differs" in refusal(folder)


# Interruption

KILLED_AT_EVERY_STEP = """
import os, shutil, signal, sys
import torch
from heedful import CheckpointError, build
from heedful.model_folder import load_model, save

torch.set_num_threads(1)
start = sys.argv[1]
new = build("laptop-writer", vocabulary=20, width=16, layers=1)
old = load_model(start)

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
        held = load_model(folder).table.weight
        print("old" if torch.equal(held, old.table.weight) else torch.equal(held, new.table.weight) and "new")
    except CheckpointError:
        print("refused")
    assert torch.equal(load_model(save(new, folder)).table.weight, new.table.weight)
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
    """What a script that is given the folder prints."""

    def printed(script: str) -> list[str]:
        output = folder.with_name("printed")
        done = fork_server.run_script(script, folder, folder=folder.parent, output=output)
        assert done.code == 0, done.output
        return output.read_text().splitlines()

    return printed


def test_a_save_killed_at_any_step_leaves_the_old_model_the_new_one_or_a_refusal(
    run: Callable[[str], list[str]],
) -> None:
    """A refusal only between the renames; and the next save puts all right."""
    outcomes = run(KILLED_AT_EVERY_STEP)
    old, refused, new = (outcomes.count(outcome) for outcome in ("old", "refused", "new"))
    assert outcomes == ["old"] * old + ["refused"] * refused + ["new"] * new
    assert old >= 4
    assert refused == 2
    assert new >= 2


def test_a_full_disk_leaves_the_old_model_and_no_debris(folder: Path, run: Callable[[str], list[str]]) -> None:
    before = {name: (folder / name).read_bytes() for name in os.listdir(folder)}
    (said,) = run(DISK_FULL)
    assert said.startswith(f"{HeedfulError.__name__} {folder}: the model's ")
    assert "bytes could not be written" in said
    assert {name: (folder / name).read_bytes() for name in os.listdir(folder)} == before
    assert load_model(folder)
