"""Models as ONNX graphs, for onnxruntime and whatever else reads them (pip install 'heedful[export]').

A graph is recorded from the model as it runs, so every transformer here can be written, whatever its design.
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import UsageError
from heedful.layers.masks import padding
from heedful.models.config import TransformerConfig
from heedful.models.encoder_decoder import Memory

README = "README.md"


class Encode(nn.Module):
    """tokens, lengths → states"""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        translator = self.model.config.family == "encoder_decoder"
        states: Tensor = self.model.encode(tokens, lengths).states if translator else self.model(tokens, lengths)
        return states


class Decode(nn.Module):
    """tokens, states, lengths → logits: the target so far beside the source as `Encode` left it"""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, states: Tensor, lengths: Tensor) -> Tensor:
        memory = Memory(states, padding(lengths, states.shape[1]))
        logits: Tensor = self.model.read_out("next_token", self.model.states(tokens, memory))
        return logits


class Continue(nn.Module):
    """tokens → logits"""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens)
        return logits


def export_onnx(model: Any, folder: Path) -> None:
    """Write the graph, or the two of an encoder-decoder, and a README of what they take and give."""
    config = model.config
    if not isinstance(config, TransformerConfig):
        raise UsageError(f"onnx cannot express family='{config.family}'")
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise UsageError(f"{' and '.join(missing)} not installed; pip install 'heedful[export]'")
    # Three of each: sizes of 1, or equal ones, would be taken for fixed.
    tokens, target = torch.ones(2, 5, dtype=torch.long), torch.ones(2, 3, dtype=torch.long)
    lengths, states = torch.tensor([5, 4]), torch.zeros(2, 5, config.width)
    batch, read, wrote = (torch.export.Dim(name, min=1) for name in ("batch", "tokens", "target_tokens"))
    folder.mkdir(parents=True, exist_ok=True)
    graphs: dict[str, tuple[nn.Module, dict[str, Tensor], dict[str, Any], str]] = {}
    source = {"tokens": tokens, "lengths": lengths}, {"tokens": {0: batch, 1: read}, "lengths": {0: batch}}
    if config.family == "decoder":
        graphs["model"] = Continue(model), {"tokens": tokens}, {"tokens": {0: batch, 1: read}}, "logits"
    else:
        graphs["encoder" if config.family == "encoder_decoder" else "model"] = Encode(model), *source, "states"
    if config.family == "encoder_decoder":
        given = {"tokens": target, "states": states, "lengths": lengths}
        shapes = {"tokens": {0: batch, 1: wrote}, "states": {0: batch, 1: read}, "lengths": {0: batch}}
        graphs["decoder"] = Decode(model), given, shapes, "logits"
    for name, (graph, given, shapes, output) in graphs.items():
        _record(graph, folder / f"{name}.onnx", given, shapes, output)
    (folder / README).write_text(_readme(config, list(graphs)), encoding="utf-8")


def _record(graph: nn.Module, file: Path, given: dict[str, Tensor], shapes: dict[str, Any], output: str) -> None:
    with warnings.catch_warnings():  # of the exporter about itself
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph.eval(),
            (),
            file,
            kwargs=given,
            input_names=list(given),
            output_names=[output],
            dynamic_shapes=shapes,
            external_data=False,
            verbose=False,
        )


def _readme(config: TransformerConfig, graphs: list[str]) -> str:
    return ""
