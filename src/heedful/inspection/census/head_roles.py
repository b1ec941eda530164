"""Measure what each attention head does: the share of its attention on the tokens that each rule selects."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from heedful.data.batching import length_buckets
from heedful.data.progress import ProgressCallback
from heedful.inspection.census.head_rules import RULES, AttendedTexts, Table, role_of
from heedful.inspection.hmm_aligner import WordLinks, statistical_alignments
from heedful.inspection.look_recording import attention_map
from heedful.inspection.look_result import AttentionKind, AttentionMap, Weights
from heedful.inspection.text_pass import TextPass, pass_states
from heedful.layers.taps import record, tap_names
from heedful.models.model_config import ModelConfig, TransformerConfig
from heedful.text.token_rows import TokenRow
from heedful.text.word_tokens import Unit

BATCH_TOKENS = 2048
Sums = npt.NDArray[np.float64]


@dataclass(frozen=True)
class HeadRole:
    """The tokens that a head attends to, by measured rules; `head_rules` defines them."""

    role: str
    """The rule that describes the head best, or "uniform" or "mixed"."""
    shares: dict[str, float]
    """For each rule, the mean attention weight on the tokens it selects."""
    chances: dict[str, float]
    """The same for a head with uniform attention."""
    entropy: float
    """Mean entropy of the weights, divided by the largest possible one: 1 = uniform."""

    @property
    def share(self) -> float | None:
        """The share of the rule that gives the role; None for uniform and mixed heads."""
        return self.shares.get(self.role)

    def to_json(self) -> dict[str, Any]:
        return {
            "role": self.role, "share": self.share, "entropy": self.entropy,
            "shares": self.shares, "chances": self.chances,
        }  # fmt: skip


@dataclass
class _Totals:
    """Sums over queries of one attention's heads."""

    shares: defaultdict[str, Sums] = field(default_factory=lambda: defaultdict(lambda: np.zeros(1)))
    chances: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    queries: Counter[str] = field(default_factory=Counter)
    entropy: Sums = field(default_factory=lambda: np.zeros(1))
    rows: int = 0

    def add(self, weights: Weights, allowed: Table, tables: dict[str, Table]) -> None:
        """Add a text: weights are heads × queries × keys."""
        for rule, table in tables.items():
            meant = table & allowed
            applies = meant.any(1)
            self.shares[rule] = self.shares[rule] + (weights * meant)[:, applies].sum((1, 2))
            self.chances[rule] += float((meant[applies].sum(1) / allowed[applies].sum(1)).sum())
            self.queries[rule] += int(applies.sum())
        choices = allowed.sum(1)
        several = choices > 1
        positive = np.maximum(weights[:, several].astype(np.float64), 1e-12)
        entropies = -(positive * np.log(positive)).sum(-1) / np.log(choices[several])
        self.entropy = self.entropy + entropies.sum(1)
        self.rows += int(several.sum())

    def role(self, head: int) -> HeadRole:
        counted = [rule for rule in self.shares if self.queries[rule]]
        shares = {rule: float(self.shares[rule][head]) / self.queries[rule] for rule in counted}
        chances = {rule: self.chances[rule] / self.queries[rule] for rule in counted}
        entropy = float(self.entropy[head]) / max(1, self.rows)
        return HeadRole(role_of(shares, chances, entropy), shares, chances, entropy)


@torch.inference_mode()
def measure_roles(
    model: Any, passes: Sequence[TextPass], progress: ProgressCallback, *, units: tuple[Unit, Unit]
) -> dict[str, HeadRole]:
    """The role of every head, by the name of its part: "decoder.1.cross.head.3".

    `units`: what counts as a word in the source and in the target, for the statistical aligner.
    """
    taps = [name for name in tap_names(model) if name.endswith(".weights")]
    totals: defaultdict[str, _Totals] = defaultdict(_Totals)
    heads: dict[str, int] = {}
    if not taps:
        return {}
    knowledge = _TextKnowledge(passes, units, model.config)
    lengths = [[len(text_pass.inputs) for text_pass in passes], [len(text_pass.output_row) for text_pass in passes]]
    for bucket in length_buckets(lengths, BATCH_TOKENS):
        indices = bucket.tolist()
        for index, recorded in _recorded_maps(model, passes, indices, taps):
            allowed, tables = knowledge.tables(index, recorded.kind)
            totals[recorded.name].add(recorded.weights, allowed, tables)
            heads[recorded.name] = recorded.heads
        progress(len(indices))
    return {f"{name}.head.{head}": totals[name].role(head) for name in totals for head in range(heads[name])}


def _recorded_maps(
    model: Any, passes: Sequence[TextPass], indices: Sequence[int], taps: Sequence[str]
) -> Iterator[tuple[int, AttentionMap]]:
    """The attention maps of a batch of passes, each with the index of its pass."""
    batch = [passes[index] for index in indices]
    with record(model, *taps) as recorded:
        pass_states(model, batch)
    for tap in taps:
        table = recorded[tap].float().cpu().numpy()
        for row, (index, text_pass) in enumerate(zip(indices, batch, strict=True)):
            yield index, attention_map(tap.removesuffix(".weights"), table[row], text_pass)


class _TextKnowledge:
    """The tables of all rules for each text, from token frequencies and linked words."""

    def __init__(self, passes: Sequence[TextPass], units: tuple[Unit, Unit], config: ModelConfig) -> None:
        self.passes, self.config = passes, config
        self.inputs = Counter(piece for text_pass in passes for piece in text_pass.inputs.pieces)
        self.targets = Counter(piece for text_pass in passes if text_pass.target for piece in text_pass.target.pieces)
        self.links: Sequence[WordLinks] = [frozenset()] * len(passes)
        if passes[0].target is not None:
            words = [(text_pass.inputs.words, text_pass.output_row.words) for text_pass in passes]
            self.links = statistical_alignments(words, units)
        self.tables = lru_cache(maxsize=len(passes) * 3)(self._tables)

    def _tables(self, index: int, kind: AttentionKind) -> tuple[Table, dict[str, Table]]:
        """The keys that each query may read, and those that each rule selects."""
        text_pass = self.passes[index]
        queries: TokenRow = text_pass.inputs if kind == "encoder" else text_pass.output_row
        keys = text_pass.output_row if kind == "self" else text_pass.inputs
        frequencies = self.targets if kind == "self" and text_pass.target is not None else self.inputs
        texts = AttendedTexts(queries, keys, kind, frequencies, self.links[index])
        allowed = _allowed(self.config, kind, texts.shape)
        tables = ((name, rule(texts)) for name, rule in RULES.items())
        return allowed, {name: table for name, table in tables if table is not None}


def _allowed(config: ModelConfig, kind: AttentionKind, shape: tuple[int, int]) -> Table:
    """The keys that each query may read, by the model's settings."""
    allowed: Table = np.ones(shape, bool)
    if kind == "cross" or not isinstance(config, TransformerConfig):
        return allowed
    if config.encoder_causal if kind == "encoder" else config.decoder_causal:
        allowed = np.tri(*shape, dtype=bool)
    if config.window is not None:
        allowed &= np.tri(*shape, k=config.window - 1, dtype=bool) & ~np.tri(*shape, k=-config.window, dtype=bool)
    if config.exclude_self:
        allowed &= ~np.eye(*shape, dtype=bool)
    return allowed
