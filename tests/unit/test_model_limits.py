"""Model folders made to do harm are refused within a second, before anything is built; so are NaN and infinity."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import heedful
from heedful import CheckpointError
from heedful.cli.import_ import import_
from heedful.inference.classifier import Classifier, ClassifierSettings
from heedful.inference.translator import Translator
from heedful.interop.conversion import import_folder
from heedful.interop.huggingface import export_model
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

FILES = ["config.json", "model.safetensors", "tokenizer.json", "manifest.json"]
MEMORY = 256 << 20
"""More memory than a refusal may take."""


def make_translator() -> Translator:
    tokenizer = Tokenizer.train(["the cat sat on a mat"] * 3, TokenizerConfig(kind="characters", vocabulary=40))
    model = heedful.build("laptop-translator", vocabulary=len(tokenizer), width=16, heads=2, layers=1)
    return Translator(model.eval(), (tokenizer,))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_translator().save(tmp_path_factory.mktemp("models") / "pristine")


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "model"))


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """A folder in a Hugging Face layout, which has no manifest."""
    export_model(heedful.build("gpt2", vocabulary=20, width=16, heads=2, layers=1), tmp_path / "gpt2", "gpt2")
    return tmp_path / "gpt2"


def refusal(folder: Path) -> str:
    """The error of loading this folder, which takes neither long nor much memory."""
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.thread_time()  # not other processes'
    with pytest.raises(CheckpointError) as caught:
        heedful.load(folder)
    assert time.thread_time() - start < 1
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < MEMORY
    assert "\n" not in str(caught.value)
    return str(caught.value)


def forge(folder: Path, **changes: Any) -> None:
    """Change the configuration, and the manifest with it."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    relist(folder, "config.json")


def relist(folder: Path, name: str) -> None:
    """Make the manifest agree with a changed file, as a forger would."""
    if (folder / "manifest.json").exists():
        manifest, content = json.loads((folder / "manifest.json").read_text()), (folder / name).read_bytes()
        manifest[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 10**9}, "layers: input should be less than or equal to 1000, got 1000000000"),
        ({"layers": 900}, "does not hold the 900 layers"),
        ({"decoder_layers": 900}, "does not hold the 901 layers"),
        ({"width": 1e30}, "width: unable to parse"),
        ({"width": 1 << 20}, "size mismatch"),
        ({"vocabulary": 1 << 40}, "vocabulary: input should be"),
        ({"max_length": 10**12}, "max_length: input should be"),
        ({"width": float("nan")}, "width"),
        ({"sublayers": [{}] * 10_000}, "sublayers.4: setting 'part' is missing; and 9,995 more"),
    ],
)
def test_configurations_that_bomb(folder: Path, changes: dict[str, Any], message: str) -> None:
    forge(folder, **changes)
    assert message in refusal(folder)


def test_tokens_beyond_the_models_vocabulary(folder: Path) -> None:
    described = json.loads((folder / "tokenizer.json").read_text())
    described["model"]["vocab"]["cat"] = 10**6
    (folder / "tokenizer.json").write_text(json.dumps(described))
    relist(folder, "tokenizer.json")
    assert "its token id 1,000,000 is outside the model's vocabulary of" in refusal(folder)


def test_added_tokens_beyond_the_models_vocabulary_are_an_error_where_they_occur(folder: Path) -> None:
    described = json.loads((folder / "tokenizer.json").read_text())
    token = {**described["added_tokens"][0], "id": 900, "content": "zebra", "special": False}
    described["added_tokens"].append(token)
    (folder / "tokenizer.json").write_text(json.dumps(described))
    relist(folder, "tokenizer.json")
    translator = heedful.Translator.load(folder, device="cpu")
    for engine in ("ctranslate2", "torch"):
        assert translator.translate("the cat", engine=engine, max_length=3) is not None  # type: ignore[arg-type]
        with pytest.raises(heedful.UsageError, match=r"token id \d+ is outside the vocabulary of"):
            translator.translate("the zebra", engine=engine, max_length=3)  # type: ignore[arg-type]


def test_class_names_that_are_not_those_of_the_models_classes(tmp_path: Path) -> None:
    tokenizer = make_translator().tokenizers[0]
    sizes = {"vocabulary": len(tokenizer), "width": 16, "heads": 2, "layers": 1}
    model = heedful.build("bert-tiny", **sizes, tasks=("sequence_class",), classes=2)
    settings = ClassifierSettings(names=("good", "bad"), max_length=9)
    folder = Classifier(model.eval(), (tokenizer,), settings=settings).save(tmp_path / "classifier")
    stored = json.loads((folder / "task.json").read_text())
    for names in ([], ["good"], ["good", "bad", "ugly"]):
        (folder / "task.json").write_text(json.dumps({**stored, "names": names}))
        relist(folder, "task.json")
        assert f"has 2 classes, but {len(names)} names of classes" in refusal(folder)
    for names, problem in [
        (["good", "good"], "another one has the same name"),
        (["good\nbad", "bad"], "it is not one short line"),
        (["good", "\x1b[2J"], "it is not one short line"),
        (["", "bad"], "it is not one short line"),
        (["g" * 1001, "bad"], "it is not one short line"),
    ]:
        (folder / "task.json").write_text(json.dumps({**stored, "names": names}))
        relist(folder, "task.json")
        assert problem in refusal(folder)


@pytest.mark.parametrize("changes", [{"n_layer": 10**9}, {"n_layer": 900}, {"n_embd": 10**30}, {"n_embd": 1 << 20}])
def test_layouts_that_bomb(layout: Path, changes: dict[str, Any]) -> None:
    forge(layout, **changes)
    assert str(layout) in refusal(layout)


@pytest.mark.parametrize("kind", ["device", "fifo", "folder"])
@pytest.mark.parametrize("name", [*FILES, "alignment.json"])
def test_devices_and_fifos_in_place_of_a_file(folder: Path, name: str, kind: str) -> None:
    (folder / name).unlink(missing_ok=True)
    if kind == "device":
        (folder / name).symlink_to("/dev/zero")
    else:
        os.mkfifo(folder / name) if kind == "fifo" else (folder / name).mkdir()
    assert name in refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"])
def test_devices_in_place_of_a_file_of_a_layout(layout: Path, name: str) -> None:
    (layout / "tokenizer.json").write_bytes((make_translator().tokenizers[0].to_file()).encode())
    (layout / name).unlink(missing_ok=True)
    (layout / name).symlink_to("/dev/zero")
    assert name in refusal(layout)


@pytest.mark.parametrize("name", FILES)
def test_files_of_a_terabyte(folder: Path, name: str) -> None:
    """Sparse: they take no room on the disk. The manifest agrees."""
    with (folder / name).open("ab") as file:
        file.truncate(1 << 40)
    manifest = json.loads((folder / "manifest.json").read_bytes()[:5000]) if name != "manifest.json" else {}
    if manifest:
        manifest[name]["size"] = 1 << 40
        (folder / "manifest.json").write_text(json.dumps(manifest))
    assert name in refusal(folder)


def test_weights_that_are_larger_than_the_model(folder: Path) -> None:
    with (folder / "model.safetensors").open("ab") as file:
        file.truncate(1 << 30)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["model.safetensors"]["size"] = 1 << 30
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert "more than the model that its config.json describes" in refusal(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"format": "heedful-1", "layers": 1, "layers": 2}', "the key 'layers' appears twice"),
        ('{"a":' * 100_000, "is not valid JSON"),
        ("[" * 1_000_000, "is not valid JSON"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "alignment.json"])
def test_repeated_keys_and_deep_json(folder: Path, name: str, content: str, message: str) -> None:
    (folder / name).write_text(content)
    relist(folder, name)
    assert f"{folder / name} is not valid JSON" in (error := refusal(folder))
    assert message in error


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_not_finite_is_named(tmp_path: Path, layout: Path, value: float) -> None:
    translator = make_translator()
    with torch.no_grad():
        translator.model.decoder.blocks[0].attention.output.weight[3, 2] = value
    assert "the weight decoder.blocks.0.attention.output.weight holds NaN" in refusal(translator.save(tmp_path / "bad"))
    writer = heedful.build("gpt2", vocabulary=20, width=16, heads=2, layers=1)
    with torch.no_grad():
        writer.table.weight[0, 0] = value
    export_model(writer, tmp_path / "layout", "gpt2")
    assert "the weight table.weight holds NaN or infinity" in refusal(tmp_path / "layout")


def store_weights(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    save_file(weights, folder / "model.safetensors")
    relist(folder, "model.safetensors")


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_weights_of_a_type_that_is_not_computed_in_are_named(folder: Path, dtype: torch.dtype) -> None:
    weights = load_file(folder / "model.safetensors")
    store_weights(folder, {name: weight.to(dtype) for name, weight in weights.items()})
    assert f"is {str(dtype).removeprefix('torch.')}: get the folder again" in refusal(folder)


def test_weights_of_two_types_are_refused_in_our_format_and_widened_from_a_layout(folder: Path, layout: Path) -> None:
    for path in (folder, layout):
        weights = load_file(path / "model.safetensors")
        halved = {name: weight.half() if weight.dim() == 1 else weight for name, weight in weights.items()}
        store_weights(path, halved)
    assert "a model computes in one type" in refusal(folder)
    assert {weight.dtype for weight in heedful.load(layout, device="cpu").model.parameters()} == {torch.float32}


def test_weights_files_of_a_million_empty_tensors(folder: Path) -> None:
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"weight{number}": empty for number in range(100_000)}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    relist(folder, "model.safetensors")
    assert "its header claims" in refusal(folder)


def test_manifests_of_a_million_files(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    many = {f"file{number}": {"size": 1, "sha256": "0" * 64} for number in range(100_000)}
    (folder / "manifest.json").write_text(json.dumps({**manifest, **many}))
    assert "manifest.json is missing or damaged" in refusal(folder)


def test_tokenizers_of_more_tokens_than_the_model_has(folder: Path) -> None:
    described = json.loads((folder / "tokenizer.json").read_text())
    token = {**described["added_tokens"][0], "special": False}
    described["added_tokens"] += [{**token, "id": 900 + n, "content": f"zebra{n}"} for n in range(100_000)]
    (folder / "tokenizer.json").write_text(json.dumps(described))
    relist(folder, "tokenizer.json")
    assert "more than the model's vocabulary of" in refusal(folder)


@pytest.mark.parametrize("name", ["alignment.json", "faithfulness.json", "activation_means.json"])
def test_settings_of_millions_of_values(folder: Path, name: str) -> None:
    (folder / name).write_text(json.dumps({"methods": [{}] * 5_000_000}))
    relist(folder, name)
    assert "is too large: more than" in refusal(folder)


@pytest.mark.parametrize("model_type", [["bert"], None, {}, 3])
def test_types_of_models_that_are_no_names(layout: Path, model_type: Any) -> None:
    forge(layout, model_type=model_type)
    assert "cannot be imported; known: bart, bert" in refusal(layout)


@pytest.mark.parametrize("beam", [1, 4])
def test_finite_weights_whose_products_are_not_are_an_error(folder: Path, beam: int) -> None:
    weights = load_file(folder / "model.safetensors")
    store_weights(folder, {name: (weight * 1e38).nan_to_num() for name, weight in weights.items()})
    translator = heedful.Translator.load(folder, device="cpu")
    for engine in ("auto", "torch", "ctranslate2"):
        with pytest.raises(heedful.HeedfulError, match=r"NaN|differs from torch"):
            translator.translate("the cat", engine=engine, beam=beam)  # type: ignore[arg-type]


# Files that are changed on purpose, or not listed


@pytest.mark.parametrize("name", ["tokenizer.json", "alignment.json", "confidence.json", "input_splitting.json"])
def test_a_file_that_is_not_in_the_manifest_is_refused(folder: Path, name: str) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.pop(name, None)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    if not (folder / name).exists():
        (folder / name).write_text("{}")
    assert f"{name} is not in manifest.json, so it cannot be verified; get the folder again or" in refusal(folder)


def test_a_listed_file_that_is_gone_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "tokenizer.json is missing" in refusal(folder)


def test_a_change_on_purpose_is_accepted_by_importing_the_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "confidence.json").write_text('{"slope": 2.0}')
    assert "if the change is yours: heedful import" in refusal(folder)
    import_(folder, tmp_path / "accepted")
    assert "accepted, though manifest.json has another checksum or none: confidence.json" in capsys.readouterr().err
    assert heedful.load(tmp_path / "accepted").confidence.slope == 2.0  # type: ignore[union-attr]
    assert import_folder(tmp_path / "accepted", tmp_path / "again").folder == tmp_path / "again"


def test_saving_removes_the_settings_of_the_model_before(folder: Path, tmp_path: Path) -> None:
    translator = make_translator()
    assert heedful.load(folder).tokenizers == translator.tokenizers
    (folder / "confidence.json").write_text("{}")
    translator.save(folder)
    assert not (folder / "confidence.json").exists()
    translator.tokenizers[0].save(heedful.save(translator.model, tmp_path / "other") / "tokenizer.json")
    assert heedful.load(tmp_path / "other").tokenizers == translator.tokenizers
