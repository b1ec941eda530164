"""`heedful export` and `heedful import` as typed in a shell."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import heedful
from heedful.cli.app import main
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed: nothing to export to")

INT8_IS_FOR_CTRANSLATE2 = "quantization int8 is only for ctranslate2, not onnx; leave it out"
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Exit code, standard output and standard error of `heedful …`."""

    def run(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["heedful", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return int(stopped.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Path]:
    def make(preset: str = "laptop-translator", **settings: Any) -> Path:
        folder = tmp_path / "model"
        tokenizer = Tokenizer.train(["a small text"], TokenizerConfig(kind="characters", vocabulary=30))
        small = {"vocabulary": len(tokenizer), "width": 16}
        small |= {} if preset.startswith("recurrent") else {"heads": 2, "layers": 1, "max_length": 16}
        heedful.save(heedful.build(preset, **{**small, **settings}), folder)
        tokenizer.save(folder / "tokenizer.json")
        return folder

    return make


def test_export_then_import_gives_the_same_model(command: Command, model: Callable[..., Path], tmp_path: Path) -> None:
    ours, there, back = model(), tmp_path / "there", tmp_path / "back"
    code, out, err = command("export", ours, "--to", "huggingface", there)
    names = "config.json, generation_config.json, model.safetensors, tokenizer.json, tokenizer_config.json"
    assert (code, out.splitlines()[0], err) == (0, f"{there}: {names}", "")
    code, out, err = command("import", there, back)
    assert (code, err) == (0, "")
    assert out == f"{back}: encoder-decoder, {heedful.count_parameters(heedful.load(back).model).total:,} parameters\n"
    assert heedful.load(back).translate("a text") == heedful.load(ours).translate("a text")


SNIPPETS = {
    "translate": ("laptop-translator", {"positions": "rotary"}, "huggingface"),
    "translate in a layout": ("laptop-translator", {}, "huggingface"),
    "generate": ("laptop-writer", {"positions": "alibi"}, "huggingface"),
    "translate, recurrent": ("recurrent-translator", {}, "huggingface"),
    "generate, recurrent": ("recurrent-writer", {}, "huggingface"),
    "fill": ("laptop-reader", {}, "huggingface"),
    "classify": ("laptop-reader", {"tasks": ("sequence_class",), "pooling": "mean"}, "huggingface"),
    "classify with a decoder": ("laptop-writer", {"tasks": ("sequence_class",), "pooling": "last"}, "huggingface"),
    "answer": ("laptop-reader", {"tasks": ("answer_span",), "max_length": 80, "segments": 2}, "huggingface"),
    "embed": ("laptop-reader", {"tasks": ()}, "huggingface"),
    "translate, ctranslate2": ("laptop-translator", {}, "ctranslate2"),
    "generate, ctranslate2": ("laptop-writer", {}, "ctranslate2"),
    "word vectors": ("laptop-writer", {}, "word2vec"),
}


@pytest.mark.usefixtures("quiet_transformers")
@pytest.mark.parametrize("name", SNIPPETS)
def test_printed_snippet_runs(
    name: str, command: Command, model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preset, settings, to = SNIPPETS[name]
    code, out, _ = command("export", model(preset, **settings), "--to", to, tmp_path / "there")
    assert code == 0
    files, blank, *snippet = out.splitlines()
    assert files.startswith(f"{tmp_path / 'there'}: ")
    assert blank == ""
    exec(compile("\n".join(snippet), name, "exec"), {})
    assert capsys.readouterr().out


def test_int8_export_is_smaller(command: Command, model: Callable[..., Path], tmp_path: Path) -> None:
    ours = model("laptop-writer", width=64)
    for name, options in (("whole", []), ("less", ["--int8"])):
        assert command("export", ours, "--to", "ctranslate2", tmp_path / name, *options)[0] == 0
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("whole", "less")]
    assert sizes[1] < 0.5 * sizes[0]
    assert (tmp_path / "less" / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    ("preset", "settings", "words", "code", "message"),
    [
        (
            "laptop-translator",
            {"score": "additive"},
            ["--to", "huggingface"],
            2,
            "Hugging Face export does not support score='additive': train with model.score='scaled_dot', "
            "or export to onnx instead",
        ),
        (
            "laptop-translator",
            {"window": 3},
            ["--to", "ctranslate2"],
            2,
            "ctranslate2 cannot express window=3; export to onnx instead",
        ),
        (
            "recurrent-translator",
            {},
            ["--to", "onnx"],
            2,
            "onnx export cannot express family='recurrent_encoder_decoder'; export to huggingface instead",
        ),
        (
            "laptop-writer",
            {},
            ["--to", "onnx", "--int8"],
            2,
            INT8_IS_FOR_CTRANSLATE2,
        ),
    ],
)
def test_an_unsupported_setting_is_one_line_and_leaves_no_files(
    preset: str,
    settings: dict[str, Any],
    words: list[str],
    code: int,
    message: str,
    command: Command,
    model: Callable[..., Path],
    tmp_path: Path,
) -> None:
    ours = model(preset, **settings)
    assert command("export", ours, *words, tmp_path / "there") == (code, "", f"heedful: {message}\n")
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_usage_errors_are_one_line(command: Command, model: Callable[..., Path], tmp_path: Path) -> None:
    ours = model()
    nowhere = tmp_path / "nowhere"
    line = f"heedful: {nowhere} is not a model folder: it does not exist\n"
    assert command("export", nowhere, "--to", "onnx", tmp_path / "there") == (4, "", line)
    assert command("import", nowhere, tmp_path / "there") == (4, "", line)
    line = f"heedful: {ours} exists and is not empty; choose another folder\n"
    assert command("export", ours, "--to", "huggingface", ours) == (2, "", line)
    code, _, err = command("export", ours, "--to", "tensorflow", tmp_path / "there")
    assert code == 2
    assert "tensorflow" in err
    bare = heedful.save(heedful.load(ours).model, tmp_path / "bare")
    code, _, err = command("export", bare, "--to", "ctranslate2", tmp_path / "there")
    assert (code, err) == (2, f"heedful: {bare} has no tokenizer.json; ctranslate2 needs a vocabulary\n")


def test_an_unknown_format_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(heedful.UsageError, match="unknown format 'onx'; did you mean 'onnx'"):
        heedful.export(tmp_path, "onx", tmp_path / "there")
