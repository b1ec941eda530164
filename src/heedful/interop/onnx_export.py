"""Export models as ONNX graphs, for onnxruntime and others (pip install 'heedful[export]').

Graphs are traced by torch.export, so every transformer can be exported. They have no KV cache: a decoder gets the whole
text so far at every step.
"""

from __future__ import annotations

import logging
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from heedful.errors import UsageError
from heedful.layers.masks import padding
from heedful.models.build import Model
from heedful.models.decoder import Decoder
from heedful.models.encoder import Encoder
from heedful.models.encoder_decoder import EncoderDecoder, EncoderOutput
from heedful.models.model_config import TransformerConfig

MAX_EMBEDDED_BYTES = 1 << 30
"""Larger weights go to a file beside the graph; the format itself is limited to 2 GiB."""


class OnnxGraph(NamedTuple):
    """A module to trace, its example inputs with their dynamic axes, and the names of its outputs."""

    module: nn.Module
    inputs: dict[str, Tensor]
    dynamic_axes: dict[str, dict[int, str]]
    outputs: list[str]


class TracedModule(nn.Module):
    """A module whose forward pass is exported."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class EncoderGraph(TracedModule):
    """Hidden states of a text, and the outputs of an encoder's heads."""

    model: Encoder | EncoderDecoder

    def forward(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        if isinstance(self.model, EncoderDecoder):
            return (self.model.encode(tokens, lengths).states,)
        states = self.model(tokens, lengths)
        outputs = [self.model.apply_head(task, states, lengths) for task in self.model.heads]
        return (states, *(part for output in outputs for part in (output if isinstance(output, tuple) else (output,))))


class DecoderGraph(TracedModule):
    """Next-token logits at each position of the target so far, given the encoder's states."""

    model: EncoderDecoder

    def forward(self, tokens: Tensor, states: Tensor, lengths: Tensor) -> Tensor:
        memory = EncoderOutput(states, padding(lengths, states.shape[1]))
        logits: Tensor = self.model.apply_head("next_token", self.model.states(tokens, memory))
        return logits


class LanguageModelGraph(TracedModule):
    """Next-token logits at each position of a text."""

    model: Decoder

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens)
        return logits


def export_onnx(model: Model, folder: Path) -> None:
    """Write the graph (two for an encoder-decoder) and a README of its inputs and outputs."""
    if not isinstance(model.config, TransformerConfig):
        raise UsageError(f"onnx export cannot express family='{model.config.family}'; export to huggingface instead")
    if model.config.exclude_self:  # onnxruntime's softmax of a query without keys is not zero
        raise UsageError("onnx export cannot express exclude_self=True: a query may have no key to attend to")
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise UsageError(f"{' and '.join(missing)} not installed; pip install 'heedful[export]'")
    if isinstance(model, Decoder) and (heads := model.config.tasks):
        raise UsageError(f"an ONNX graph of a decoder has no {' or '.join(heads)} head; export to huggingface")
    folder.mkdir(parents=True, exist_ok=True)
    graphs = build_graphs(model)
    for name, graph in graphs.items():
        _trace(graph, folder / f"{name}.onnx")
    (folder / "README.md").write_text(_readme(model.config, graphs), encoding="utf-8")


def build_graphs(model: Model) -> dict[str, OnnxGraph]:
    """Return the graphs by file name. Example sizes differ and are not 1, or the tracer would specialize on them."""
    tokens, target = torch.ones(2, 5, dtype=torch.long), torch.ones(2, 3, dtype=torch.long)
    lengths, states = torch.tensor([5, 4]), torch.zeros(2, 5, model.config.width)
    row, text = {0: "batch"}, {0: "batch", 1: "tokens"}
    if model.config.family == "decoder":
        return {"model": OnnxGraph(LanguageModelGraph(model), {"tokens": tokens}, {"tokens": text}, ["logits"])}
    inputs, axes = {"tokens": tokens, "lengths": lengths}, {"tokens": text, "lengths": row}
    encoder = OnnxGraph(EncoderGraph(model), inputs, axes, ["states"])
    if model.config.family == "encoder":
        outputs = [name for task in model.heads for name in HEAD_OUTPUTS.get(task, (task,))]
        return {"model": encoder._replace(outputs=["states", *outputs])}
    inputs = {"tokens": target, "states": states, "lengths": lengths}
    axes = {"tokens": {0: "batch", 1: "target_tokens"}, "states": text, "lengths": row}
    return {"encoder": encoder, "decoder": OnnxGraph(DecoderGraph(model), inputs, axes, ["logits"])}


HEAD_OUTPUTS = {"answer_span": ("answer_start", "answer_end")}
"""Heads with more than one output tensor."""


def _trace(graph: OnnxGraph, file: Path) -> None:
    size = sum(weight.nbytes for weight in graph.module.parameters())
    dimensions = {name: torch.export.Dim(name, min=1) for axes in graph.dynamic_axes.values() for name in axes.values()}
    shapes = {
        name: {axis: dimensions[dimension] for axis, dimension in axes.items()}
        for name, axes in graph.dynamic_axes.items()
    }
    level = logging.getLogger("torch.onnx").level
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's own
            torch.onnx.export(
                graph.module.eval(),
                (),
                file,
                kwargs=graph.inputs,
                input_names=list(graph.inputs),
                output_names=graph.outputs,
                dynamic_shapes=shapes,
                external_data=size > MAX_EMBEDDED_BYTES,
                verbose=False,
            )
    finally:
        logging.getLogger("torch.onnx").setLevel(level)


def _readme(config: TransformerConfig, graphs: dict[str, OnnxGraph]) -> str:
    kinds = {torch.int64: "int64", torch.float32: "float32"}
    lines = [f"# {config.family.replace('_', '-')}, exported by heedful", ""]
    for name, graph in graphs.items():
        lines += [f"`{name}.onnx`: {graph.module.__doc__}", ""]
        for input_name, example in graph.inputs.items():
            sizes = [graph.dynamic_axes[input_name].get(axis, str(size)) for axis, size in enumerate(example.shape)]
            lines.append(f"- input `{input_name}`: {kinds[example.dtype]}, {' × '.join(sizes)}")
        lines += [f"- output {', '.join(f'`{output}`' for output in graph.outputs)}: float32", ""]
    lines.append(NOTES[config.family])
    return "\n".join(lines) + "\n"


NOTES = {
    "encoder_decoder": (
        "A source is its tokens (`tokenizer.json`) and then END, id 3; rows are padded at the end, and `lengths` "
        "counts the real tokens. The target begins with START, id 2. Greedy: run the encoder once; take the "
        "most probable token at the last position except ids 0, 1 and 2, append it, run the decoder again; stop at END."
    ),
    "decoder": (
        "The text is the prompt's tokens (`tokenizer.json`), or END, id 3, to begin a new one. Greedy: take the "
        "most probable token at the last position except ids 0, 1 and 2, append it, run again; stop at END."
    ),
    "encoder": "Rows are padded at the end, and `lengths` counts the real tokens.",
}
