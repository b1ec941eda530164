"""Take a census: ablate every part of a model in turn on the same texts."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch

from heedful.data.batching import evenly_spaced, length_buckets
from heedful.data.progress import StartProgress, no_progress
from heedful.errors import UsageError
from heedful.inspection.census.census_result import AblateTo, AligningHead, Census, CensusKind, Change, PartCensus
from heedful.inspection.census.head_roles import HeadRole, measure_roles
from heedful.inspection.census.head_rules import ALIGNMENT_RULES
from heedful.inspection.census.output_scores import OutputScores, output_counts, score_next_tokens, score_outputs
from heedful.inspection.census.paired_bootstrap import PairedBootstrap
from heedful.inspection.census.saved_progress import CensusScores
from heedful.inspection.census.shared_pass import Ablation, SharedPass, ablated_layer
from heedful.inspection.text_pass import TextPass, pass_logits, pass_states
from heedful.interventions.kinds import Ablate
from heedful.interventions.means import ActivationMeans, MeanRecorder
from heedful.interventions.parts import Part, gate_names, model_parts
from heedful.interventions.resolve import InterventionSource, resolve
from heedful.layers.taps import ShownAs
from heedful.text.word_tokens import Unit

TEXT_TOKENS, ABLATED_TOKENS = 512, 4096
"""Tokens, padding included, of a batch of texts, and of that batch repeated for several ablations."""
Example = TypeVar("Example")
UNITS = {"sequence_class": "class", "answer_span": "answer boundary"}


@runtime_checkable
class CensusSource(InterventionSource, Protocol):
    """The interface of a trained model that a census needs."""

    @property
    def task(self) -> str: ...

    @property
    def short_name(self) -> str: ...

    @property
    def means(self) -> ActivationMeans | None: ...

    @property
    def word_units(self) -> tuple[Unit, Unit]: ...

    @property
    def independent_labels(self) -> bool:
        """Whether each class is a separate yes/no decision (multi-label)."""


def usable_passes(
    passes_of: Callable[[Example], list[TextPass]], examples: Sequence[Example], limit: int | None
) -> tuple[list[TextPass], int]:
    """The passes of at most `limit` evenly spaced examples, and the number that do not fit in one pass.

    Raises the first example's UsageError if none fits.
    """
    usable: list[TextPass] = []
    problems: list[UsageError] = []
    for index in evenly_spaced(len(examples), len(examples) if limit is None else limit):
        try:
            usable += passes_of(examples[index])
        except UsageError as error:
            problems.append(error)
    if problems and not usable:
        raise problems[0]
    return usable, len(problems)


def mean_activations(model: Any, passes: Sequence[TextPass], start_progress: StartProgress) -> ActivationMeans:
    """The mean value at every part of a model over these passes."""
    recorder = MeanRecorder(model)
    with start_progress("measuring means", len(passes)) as progress:
        for bucket in length_buckets(pass_lengths(passes), TEXT_TOKENS):
            batch = [passes[index] for index in bucket.tolist()]
            sizes = [[len(text_pass.inputs), len(text_pass.output_row)] for text_pass in batch]
            recorder.add(partial(pass_states, model, batch), sizes)
            progress(len(batch))
    return recorder.result()


def pass_lengths(passes: Sequence[TextPass]) -> list[list[int]]:
    """The numbers of input tokens and of output tokens of each pass."""
    return [[len(text_pass.inputs) for text_pass in passes], [len(text_pass.output_row) for text_pass in passes]]


def census_parts(model: Any) -> dict[str, tuple[Part, CensusKind]]:
    """The parts that a census switches off: attentions, their heads, feed-forward nets, skips, positions, gates."""
    gates = gate_names(model)
    parts: dict[str, tuple[Part, CensusKind]] = {}
    for name, part in model_parts(model).items():
        if part.is_recurrent and part.head is not None:
            continue  # a single head is the whole attention
        if part.kind != "tap":
            parts[name] = part, part.kind
        elif name in gates:
            parts[name] = part, "gate"
    return parts


def take_census(
    source: CensusSource,
    passes: Sequence[TextPass],
    *,
    to: Sequence[AblateTo] = ("zero", "mean"),
    skipped: int = 0,
    state: Path | None = None,
    start_progress: StartProgress = no_progress,
) -> Census:
    """Ablate every part in turn. `state`: the file from which an interrupted census resumes; it is not deleted."""
    started = time.monotonic()
    parts = census_parts(source.model)
    if not passes:
        raise UsageError("no texts to take a census on")
    if passes[0].head is None:
        raise UsageError(f"{source.name} makes vectors and predicts nothing: there is no loss to take a census of")
    passes = [text_pass for text_pass in passes if text_pass.outputs or source.independent_labels]
    if not passes:
        raise UsageError("the texts have nothing to predict; use longer ones")
    ablations = {
        (name, choice): _ablation(source, part, choice)
        for name, (part, _) in parts.items()
        for choice in to
        if choice == "zero" or _has_mean(source, part)
    }
    fingerprint = "" if state is None else _fingerprint(source, passes, list(ablations))
    scores = CensusScores(len(ablations), len(passes), state, fingerprint)
    with scores.saved_at_exit(), start_progress("switching parts off", scores.loss.size) as progress:
        progress(scores.measured)
        _measure(source, passes, list(ablations.values()), scores, progress)
    with start_progress("reading attention", len(passes)) as progress:
        roles = measure_roles(source.model, passes, progress, units=source.word_units)
    return _result(source, passes, parts, list(ablations), scores, roles, skipped, time.monotonic() - started)


def _fingerprint(source: CensusSource, passes: Sequence[TextPass], ablations: Sequence[tuple[str, AblateTo]]) -> str:
    """The checksum of everything the scores depend on: weights, texts with their answers, parts and means."""
    digest = hashlib.sha256()
    for name, weight in source.model.state_dict().items():
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    texts = [(text.inputs.ids, text.output_row.ids, [output.label for output in text.outputs]) for text in passes]
    digest.update(repr((source.model.config, source.means, ablations, texts)).encode())
    return digest.hexdigest()


def _ablation(source: CensusSource, part: Part, to: AblateTo) -> Ablation:
    resolved = resolve(source, [Ablate(part.name, to=to)]).edits
    edits = tuple((tap, edit) for tap, edit in resolved if not isinstance(edit, ShownAs))
    return Ablation(edits, ablated_layer(source.model, [tap for tap, _ in edits]))


def _has_mean(source: CensusSource, part: Part) -> bool:
    tap = part.tap if part.head is None or part.is_recurrent else part.attention_tap("heads")
    return source.means is not None and source.means.at(tap) is not None


@torch.inference_mode()
def _measure(
    source: CensusSource, passes: Sequence[TextPass], ablations: Sequence[Ablation], scores: CensusScores, progress: Any
) -> None:
    """Fill in the scores that are not measured yet, batch by batch of texts."""
    for bucket in length_buckets(pass_lengths(passes), TEXT_TOKENS):
        indices = bucket.tolist()
        missing = np.flatnonzero(~np.isfinite(scores.loss[:, indices]).all(1)).tolist()
        if not missing:
            continue
        batch = [passes[index] for index in indices]
        shared = SharedPass(source.model, batch)

        def store(row: int, states: Any, batch: Sequence[TextPass] = batch, indices: list[int] = indices) -> None:
            result = score_pass_states(source, batch, states)
            scores.loss[row, indices], scores.correct[row, indices] = result
            progress(len(indices))
            scores.save_periodically()

        if missing[0] == 0:
            store(0, shared.states)
        rows = [row for row in missing if row > 0]
        for index, states in shared.ablated_states([ablations[row - 1] for row in rows], ABLATED_TOKENS):
            store(rows[index], states)


def score_pass_states(source: CensusSource, batch: Sequence[TextPass], states: torch.Tensor) -> OutputScores:
    """Score passes from the states that the head reads."""
    if batch[0].head == "next_token":
        return score_next_tokens(source.model, batch, states)
    logits = pass_logits(source.model, states, batch)
    return score_outputs(batch, logits, independent=source.independent_labels)


def _result(
    source: CensusSource, passes: Sequence[TextPass], parts: dict[str, tuple[Part, CensusKind]],
    ablations: Sequence[tuple[str, AblateTo]], scores: CensusScores, roles: dict[str, HeadRole], skipped: int,
    seconds: float,
) -> Census:  # fmt: skip
    model: Any = source.model
    counts = output_counts(passes, model.config.classes if source.independent_labels else None)
    bootstrap = PairedBootstrap(counts)
    loss, correct = scores.loss - scores.loss[0], scores.correct - scores.correct[0]
    changes: dict[str, dict[AblateTo, Change]] = {name: {} for name in parts}
    for row, (name, to) in enumerate(ablations, start=1):
        changes[name][to] = Change(bootstrap.mean(loss[row]), bootstrap.mean(correct[row]))
    head = passes[0].head or ""
    return Census(
        model=source.short_name,
        task=source.task,
        texts=len(passes),
        outputs=int(counts.sum()),
        skipped=skipped,
        unit=UNITS.get(head, "token"),
        to=tuple(dict.fromkeys(to for _, to in ablations)),
        loss=bootstrap.mean(scores.loss[0]),
        accuracy=bootstrap.mean(scores.correct[0]),
        parts=tuple(
            PartCensus(name, kind, _layer(name), part.head, changes[name], roles.get(_head_name(part)))
            for name, (part, kind) in parts.items()
        ),
        seconds=seconds,
        aligning_head=_aligning_head(source, roles),
    )


def _layer(name: str) -> int | None:
    return next((int(piece) for piece in name.split(".") if piece.isdigit()), None)


def _head_name(part: Part) -> str:
    """The name of the head whose role describes the part; the one attention of a recurrent model is a head."""
    return f"{part.name}.head.0" if part.is_recurrent else part.name


def _aligning_head(source: CensusSource, roles: dict[str, HeadRole]) -> AligningHead | None:
    """The best aligning head as measured in training, and the best by the rules of the census."""
    stored = getattr(source, "alignment", None)
    shares = {name: _alignment_share(role) for name, role in roles.items()}
    if stored is None or not any(shares.values()):
        return None
    attention = stored.tap.removesuffix(".weights")
    trained = attention if stored.head is None else f"{attention}.head.{stored.head}"
    return AligningHead(trained, max(shares, key=shares.__getitem__))


def _alignment_share(role: HeadRole) -> float:
    return max(role.shares.get(rule, 0.0) for rule in ALIGNMENT_RULES)
