"""A `Look` at a model on one text: its answer with probabilities, every head's attention, and the alignment.

look = translator.look("A dog runs.")
look.attention["decoder.1.cross"].weights      # heads × target tokens × input tokens
look.save("dog.html")
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from heedful.errors import UsageError
from heedful.inspection.logit_lens import LogitLens
from heedful.inspection.predictions import Prediction
from heedful.inspection.result_file import write_result
from heedful.syntax import argument
from heedful.text.token_rows import TokenRow, span_text

Values = Literal["base64", "list"]
Axis = Literal["inputs", "target"]
AttentionKind = Literal["encoder", "self", "cross"]
Weights = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ScoredOutput:
    """One output of a text with its probability, and the most probable ones at its position."""

    position: int
    """The token whose state predicts this output: the row in attention maps."""
    label: int
    text: str
    words: tuple[int, ...]
    """The words of the output text that this output belongs to."""
    probability: float
    top: tuple[Prediction, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "position": self.position,
            "label": self.label,
            "text": self.text,
            "words": list(self.words),
            "probability": self.probability,
            "top": [prediction.to_json() for prediction in self.top],
        }


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """The attention weights of one attention layer for one text. Every row of a head sums to 1."""

    name: str
    """The part: "decoder.2.cross"."""
    layer: int | None
    kind: AttentionKind
    rows: Axis
    """The tokens that attend."""
    columns: Axis
    """The tokens that are attended to."""
    weights: Weights
    """Heads × rows × columns."""

    @property
    def heads(self) -> int:
        return len(self.weights)

    def to_json(self, values: Values = "base64") -> dict[str, Any]:
        return {
            "name": self.name,
            "layer": self.layer,
            "kind": self.kind,
            "rows": self.rows,
            "columns": self.columns,
            "heads": self.heads,
            "shape": list(self.weights.shape),
            "data": _encoded(self.weights, values),
        }


@dataclass(frozen=True, eq=False)
class HeadAlignment:
    """Attention of each output word to the input's words by one head, or by the mean of a layer's heads."""

    part: str
    head: int | None
    """None: the mean of all heads."""
    method: str
    """How the head was chosen, and its measured error."""
    weights: Weights
    """Output words × (input words, no word)."""
    links: tuple[tuple[int, int], ...]
    """Pairs of input word and output word."""

    def to_json(self) -> dict[str, Any]:
        return {
            "head": {"part": self.part, "head": self.head},
            "method": self.method,
            "weights": _encoded(self.weights, "list"),
            "links": [list(link) for link in self.links],
        }


@dataclass(frozen=True, eq=False)
class Look:
    """The values that a model computed for one text; displays as a page in notebooks."""

    model: str
    task: str
    inputs: TokenRow
    """The tokens that the model reads: the encoder's, or the only ones."""
    target: TokenRow | None
    """Encoder-decoders: START and the target's tokens, which the decoder reads."""
    outputs: tuple[ScoredOutput, ...]
    attention: dict[str, AttentionMap]
    """By the names of the parts: "encoder.0.attention", "decoder.2.cross", "cross" of a recurrent model."""
    alignment: HeadAlignment | None = None
    """Translators with cross-attention only."""
    lens: LogitLens | None = None
    interventions: tuple[str, ...] = ()
    """Descriptions of the active interventions."""

    @property
    def output_row(self) -> TokenRow:
        """The row that holds the output's words."""
        return self.inputs if self.target is None else self.target

    @property
    def output_text(self) -> str:
        """The answer: the target, the continuation, the passage's words, the labels or the words in the masks."""
        if self.target is not None:
            return self.target.text
        if self.task == "generate":
            return "".join(output.text for output in self.outputs).strip()
        if self.task == "answer":
            return span_text(self.inputs, [output.label for output in self.outputs])
        return ", ".join(output.text.strip() for output in self.outputs)

    def row(self, axis: Axis) -> TokenRow:
        """The tokens along an axis of an attention map."""
        return self.inputs if axis == "inputs" or self.target is None else self.target

    def to_json(self, values: Values = "base64") -> dict[str, Any]:
        """As JSON values. Attention weights are little-endian float32 numbers in base64, or nested lists."""
        result: dict[str, Any] = {
            "model": self.model,
            "task": self.task,
            "inputs": self.inputs.to_json(),
            "target": None if self.target is None else self.target.to_json(),
            "outputs": [output.to_json() for output in self.outputs],
            "attention": [attention.to_json(values) for attention in self.attention.values()],
            "alignment": None if self.alignment is None else self.alignment.to_json(),
            "interventions": list(self.interventions),
        }
        return result if self.lens is None else result | {"lens": self.lens.to_json()}

    def save(self, file: str | Path, *, part: str | None = None, head: int | None = None) -> Path:
        """Write a page that works offline (.html), a picture (.png, .svg, .pdf) or all values (.json).

        A picture shows the alignment and every head, or with `part` the heads of one attention, or one `head` of it; a
        page opens at them.
        """
        if (part, head) != (None, None) and Path(file).suffix.lower() == ".json":
            raise UsageError(f"{file}: JSON holds every attention; leave {argument('part')} and {argument('head')} out")

        def draw(path: Path, kind: str) -> None:
            from heedful.inspection.look_picture import draw_look

            draw_look(self, path, kind, part=part, head=head)

        return write_result(
            file, page=lambda: self.to_html(part=part, head=head), draw=draw, values=lambda: self.to_json("list")
        )

    def to_html(self, *, part: str | None = None, head: int | None = None) -> str:
        """A self-contained HTML page: token rows, ribbons, every head, heat map, probabilities, lens.

        It opens at the aligned head, or at the attention `part` and its `head`.
        """
        from heedful.inspection.attention_table import selected_map
        from heedful.inspection.look_page import page

        data = self.to_json()
        if (part, head) != (None, None):
            data["opened"] = dict(zip(("part", "head"), selected_map(self, part, head), strict=True))
        return page("look", f"{self.model}: {self.inputs.text:.60}", data)

    def _repr_html_(self) -> str:
        """The page, for display in a notebook."""
        from heedful.inspection.look_page import frame

        return frame(self.to_html())


def _encoded(weights: Weights, values: Values) -> Any:
    """An array as JSON: its bytes in base64, or nested lists of numbers with six decimals."""
    if values == "list":
        return weights.astype(np.float64).round(6).tolist()
    return b64encode(np.ascontiguousarray(weights, dtype="<f4").tobytes()).decode("ascii")
