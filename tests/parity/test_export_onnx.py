"""onnxruntime runs what `heedful export --to onnx` writes, with the same outputs.

The export runs in a separate process: tracing does not work under runtime shape checks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.errors import UsageError
from heedful.inference.trained_model import TrainedModel
from heedful.interop.onnx_export import export_onnx
from heedful.interop.usage_snippets import usage_snippet
from heedful.text.special_tokens import END, NEVER_GENERATED, PAD, START
from heedful.text.tokenizer import Tokenizer

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: nothing to run a graph with")

SMALL: dict[str, Any] = {"vocabulary": 40, "width": 16, "heads": 2, "layers": 1, "max_length": 32}
DESIGNS: dict[str, tuple[str, dict[str, Any]]] = {
    "rotary": ("laptop-translator", {"positions": "rotary", "key_value_heads": 1}),
    "studies": (
        "laptop-writer",
        {
            "score": "position",
            "softmax": False,
            "head_activation": "relu",
            "projection": "network",
            "decoder_causal": False,
            "sublayers": [{"part": "*.feed_forward", "feed_forward": 8, "norm": "none"}],
        },
    ),
    "alibi": ("laptop-writer", {"positions": "alibi", "window": 4}),
    "reader": ("bert-tiny", {"tasks": ("answer_span", "masked_token", "sequence_class")}),
}


def export_all(fork_server: Any, folder: Path) -> Path:
    """Export every `*.ours` model of the folder in one process; tracing a graph takes seconds."""
    script = f"""
import heedful, pathlib
for folder in pathlib.Path({str(folder)!r}).glob("*.ours"):
    heedful.export(folder, "onnx", folder.with_suffix(""))
"""
    done = fork_server.run_script(script, folder=folder, output=folder / "output")
    assert done.code == 0, done.output
    assert (folder / "output").read_text() == ""
    return folder


@pytest.fixture(scope="module")
def exported(
    fork_server: Any, translator: TrainedModel, writer: TrainedModel, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("onnx")
    for name, trained in (("translator", translator), ("writer", writer)):
        heedful.save(trained.model, folder / f"{name}.ours")
        trained.tokenizers[0].save(folder / f"{name}.ours" / "tokenizer.json")
    return export_all(fork_server, folder)


@pytest.fixture(scope="module")
def designs(fork_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("designs")
    for name, (preset, settings) in DESIGNS.items():
        torch.manual_seed(0)
        heedful.save(heedful.build(preset, **{**SMALL, **settings}), folder / f"{name}.ours")
    return export_all(fork_server, folder)


def session(file: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(file, options)


def most_probable(logits: Any) -> Any:
    logits[..., list(NEVER_GENERATED)] = -np.inf
    return logits[:, -1].argmax(-1)[:, None]


def until_end(rows: Any) -> list[list[int]]:
    return [row[: row.index(END)] if END in row else row for row in rows.tolist()]


def test_onnxruntime_translates_like_heedful(
    translator: TrainedModel, held_out: list[str], translations: list[list[int]], exported: Path
) -> None:
    encoder, decoder = (session(exported / "translator" / f"{part}.onnx") for part in ("encoder", "decoder"))
    ids = [[*text, END] for text in translator.tokenizers[0].encode(held_out)]
    lengths = np.array([len(text) for text in ids])
    tokens = np.array([text + [PAD] * (lengths.max() - len(text)) for text in ids])
    (states,) = encoder.run(None, {"tokens": tokens, "lengths": lengths})
    generated = np.full((50, 1), START)
    for _ in range(14):
        (logits,) = decoder.run(None, {"tokens": generated, "states": states, "lengths": lengths})
        generated = np.concatenate([generated, most_probable(logits)], 1)
    assert until_end(generated[:, 1:]) == translations
    assert "`decoder.onnx`" in (exported / "translator" / "README.md").read_text()
    assert Tokenizer.load(exported / "translator" / "tokenizer.json") == translator.tokenizers[0]


def test_onnxruntime_generates_like_heedful(
    prompts: list[list[int]], continuations: list[list[int]], exported: Path
) -> None:
    model, tokens = session(exported / "writer" / "model.onnx"), np.array(prompts)
    for _ in range(20):
        (logits,) = model.run(None, {"tokens": tokens})
        tokens = np.concatenate([tokens, most_probable(logits)], 1)
    assert until_end(tokens[:, len(prompts[0]) :]) == continuations


def test_printed_snippets_translate_and_generate(
    translator: TrainedModel, writer: TrainedModel, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, trained in (("translator", translator), ("writer", writer)):
        exec(usage_snippet(trained, "onnx", exported / name), {})
        assert capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (3, 7)])
def test_onnx_outputs_match_for_every_design_and_size(size: tuple[int, int], designs: Path) -> None:
    tokens = torch.randint(6, 40, size)
    lengths = torch.randint(1, size[1] + 1, (size[0],))
    lengths[0] = size[1]
    inputs = {"tokens": tokens.numpy(), "lengths": lengths.numpy()}
    models = {name: heedful.load(designs / f"{name}.ours").model for name in DESIGNS}
    with torch.no_grad():
        for name in ("alibi", "studies"):
            (output,) = session(designs / name / "model.onnx").run(None, {"tokens": inputs["tokens"]})
            close(output, models[name](tokens))
        (states,) = session(designs / "rotary" / "encoder.onnx").run(None, inputs)
        (output,) = session(designs / "rotary" / "decoder.onnx").run(
            None, {"tokens": inputs["tokens"], "states": states, "lengths": inputs["lengths"]}
        )
        close(output, models["rotary"](tokens, tokens, lengths))
        reader = session(designs / "reader" / "model.onnx")
        names = [output.name for output in reader.get_outputs()]
        assert {*names} == {"states", "answer_start", "answer_end", "masked_token", "sequence_class", "pooled"}
        answers = dict(zip(names, reader.run(None, inputs), strict=True))
        states = models["reader"](tokens, lengths)
        close(answers["masked_token"], models["reader"].apply_head("masked_token", states))
        close(answers["answer_end"], models["reader"].apply_head("answer_span", states)[1])
        close(answers["sequence_class"], models["reader"].apply_head("sequence_class", states, lengths))


def close(output: Any, expected: torch.Tensor) -> None:
    torch.testing.assert_close(torch.from_numpy(output), expected, rtol=1e-4, atol=1e-4)


def test_a_head_that_the_graph_cannot_have_is_refused(tmp_path: Path) -> None:
    decoder = heedful.build("gpt2", width=16, heads=2, layers=1, vocabulary=20, tasks=["sequence_class"], classes=3)
    with pytest.raises(UsageError, match="no sequence_class head; export to huggingface"):
        export_onnx(decoder, tmp_path / "there")
