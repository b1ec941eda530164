"""Models as ONNX graphs, for onnxruntime and whatever else reads them (pip install 'heedful[export]').

A graph is recorded from the model as it runs, so every transformer here can be written, whatever its design. Graphs
keep no cache: a decoder is given the whole text so far at every step.
"""

from __future__ import annotations

import logging
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heedful.errors import UsageError
from heedful.layers.masks import padding
from heedful.models.encoder_decoder import EncoderOutput
from heedful.models.model_config import TransformerConfig

LARGEST = 1 << 30
"""Bytes of weights beyond which they go to a file beside the graph; the format itself ends at 2 GiB."""


class OnnxGraph(NamedTuple):
    """What is recorded: a module, examples of what it takes with their free axes, and what it gives."""

    module: nn.Module
    inputs: dict[str, Tensor]
    dynamic_axes: dict[str, dict[int, str]]
    outputs: list[str]


class EncoderGraph(nn.Module):
    """The states of a text, and what the heads of an encoder make of them."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        if self.model.config.family == "encoder_decoder":
            return (self.model.encode(tokens, lengths).states,)
        states = self.model(tokens, lengths)
        read = [self.model.apply_head(task, states, lengths) for task in self.model.heads]
        return (states, *(part for one in read for part in (one if isinstance(one, tuple) else (one,))))


class DecoderGraph(nn.Module):
    """Logits for the token after each one of the target so far, beside the source's states."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, states: Tensor, lengths: Tensor) -> Tensor:
        memory = EncoderOutput(states, padding(lengths, states.shape[1]))
        logits: Tensor = self.model.apply_head("next_token", self.model.states(tokens, memory))
        return logits


class LanguageModelGraph(nn.Module):
    """Logits for the token after each one of a text."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens)
        return logits


def export_onnx(model: Any, folder: Path) -> None:
    """Write the graph, or the two of an encoder-decoder, and a README of what they take and give."""
    if not isinstance(model.config, TransformerConfig):
        raise UsageError(f"onnx export cannot express family='{model.config.family}'")
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise UsageError(f"{' and '.join(missing)} not installed; pip install 'heedful[export]'")
    folder.mkdir(parents=True, exist_ok=True)
    described = build_graphs(model)
    for name, graph in described.items():
        _record(graph, folder / f"{name}.onnx")
    (folder / "README.md").write_text(_readme(model.config, described), encoding="utf-8")


def build_graphs(model: Any) -> dict[str, OnnxGraph]:
    """By file name. The examples' sizes differ and are not 1: equal ones, and 1, would be taken for fixed."""
    tokens, target = torch.ones(2, 5, dtype=torch.long), torch.ones(2, 3, dtype=torch.long)
    lengths, states = torch.tensor([5, 4]), torch.zeros(2, 5, model.config.width)
    row, text = {0: "batch"}, {0: "batch", 1: "tokens"}
    if model.config.family == "decoder":
        return {"model": OnnxGraph(LanguageModelGraph(model), {"tokens": tokens}, {"tokens": text}, ["logits"])}
    read = OnnxGraph(EncoderGraph(model), {"tokens": tokens, "lengths": lengths}, {"tokens": text, "lengths": row}, ["states"])
    if model.config.family == "encoder":
        answers = [part for task in model.heads for part in ANSWERS.get(task, (task,))]
        return {"model": read._replace(outputs=["states", *answers])}
    takes = {"tokens": target, "states": states, "lengths": lengths}
    axes = {"tokens": {0: "batch", 1: "target_tokens"}, "states": text, "lengths": row}
    return {"encoder": read, "decoder": OnnxGraph(DecoderGraph(model), takes, axes, ["logits"])}


ANSWERS = {"answer_span": ("answer_start", "answer_end")}
"""Heads that give more than one tensor."""


def _record(graph: OnnxGraph, file: Path) -> None:
    size = sum(weight.nbytes for weight in graph.module.parameters())
    dimensions = {name: torch.export.Dim(name, min=1) for axes in graph.dynamic_axes.values() for name in axes.values()}
    shapes = {name: {axis: dimensions[each] for axis, each in axes.items()} for name, axes in graph.dynamic_axes.items()}
    level = logging.getLogger("torch.onnx").level
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's, about itself
            torch.onnx.export(
                graph.module.eval(),
                (),
                file,
                kwargs=graph.inputs,
                input_names=list(graph.inputs),
                output_names=graph.outputs,
                dynamic_shapes=shapes,
                external_data=size > LARGEST,
                verbose=False,
            )
    finally:
        logging.getLogger("torch.onnx").setLevel(level)


def _readme(config: TransformerConfig, described: dict[str, OnnxGraph]) -> str:
    kinds = {torch.int64: "int64", torch.float32: "float32"}
    lines = [f"# {config.family.replace('_', '-')}, exported by heedful", ""]
    for name, graph in described.items():
        lines += [f"`{name}.onnx`: {graph.module.__doc__}", ""]
        for given, example in graph.inputs.items():
            sizes = [graph.dynamic_axes[given].get(axis, str(size)) for axis, size in enumerate(example.shape)]
            lines.append(f"- takes `{given}`: {kinds[example.dtype]}, {' × '.join(sizes)}")
        lines += [f"- gives {', '.join(f'`{each}`' for each in graph.outputs)}: float32", ""]
    lines.append(NOTES[config.family])
    return "\n".join(lines) + "\n"


NOTES = {
    "encoder_decoder": (
        "A source is its tokens (`tokenizer.json`) and then END, id 3; rows are padded at the end, and `lengths` says "
        "how many tokens are real. The target begins with START, id 2. Greedy: run the encoder once; take the "
        "likeliest token at the last position but for ids 0, 1 and 2, append it, run the decoder again; stop at END."
    ),
    "decoder": (
        "The text is the prompt's tokens (`tokenizer.json`), or END, id 3, to begin a new one. Greedy: take the "
        "likeliest token at the last position but for ids 0, 1 and 2, append it, run again; stop at END."
    ),
    "encoder": "Rows are padded at the end, and `lengths` says how many tokens are real.",
}
