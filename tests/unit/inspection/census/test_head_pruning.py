"""Pruning heads: equals ablating them, makes the model smaller, and costs less than random pruning."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

import heedful
from heedful.errors import UsageError
from heedful.generation.backends.backend import SearchRequest
from heedful.inspection.census.census_measurement import usable_passes
from heedful.inspection.census.pruning_choice import heads_within, joint_loss, least_important_heads
from heedful.inspection.text_pass import run_passes

HEADS = {
    "translate": ["encoder.0.attention.head.1", "encoder.0.attention.head.3", "decoder.1.cross.head.0"],
    "generate": ["decoder.0.attention.head.0", "decoder.1.attention.head.2"],
    "classify": ["encoder.1.attention.head.3"],
}
TEXTS = ["a small dog runs in the green park", "two men ride a bicycle", "a boy in a blue shirt runs"]


def examples_of(task: str, model: Any) -> list[Any]:
    if task == "translate":
        return [*zip(TEXTS, reversed(TEXTS), strict=True)]
    return TEXTS if task == "generate" else [(text, model.settings.names[0]) for text in TEXTS]


def logits_of(model: Any, examples: list[Any], interventions: list[Any]) -> torch.Tensor:
    passes, _ = usable_passes(model.scored_passes, examples, None)
    with torch.inference_mode():
        rows = model.intervened(lambda batch: run_passes(model.model, batch), passes, interventions)
    return torch.cat(list(rows))


@pytest.mark.parametrize("to", ["zero", "mean"])
@pytest.mark.parametrize("task", HEADS)
@pytest.mark.parametrize("settings", [{}, {"positions": "rotary", "norm_order": "pre"}, {"head_width": 6}])
def test_a_pruned_model_equals_the_model_with_these_heads_ablated(
    task: str, settings: dict[str, Any], to: str, small_model: Callable[..., Any], tmp_path: Path
) -> None:
    model = small_model(task, **settings)
    examples = examples_of(task, model)
    if to == "mean":
        model.measure_means(examples)
    pruned = model.prune(HEADS[task])
    expected = logits_of(model, examples, [heedful.Ablate(head, to=to) for head in HEADS[task]])
    torch.testing.assert_close(logits_of(pruned, examples, []), expected, atol=2e-5, rtol=1e-4)
    loaded = heedful.load(pruned.save(tmp_path / "pruned"))
    assert torch.equal(logits_of(loaded, examples, []), logits_of(pruned, examples, []))
    weights = [sum(parameter.numel() for parameter in pruned.model.parameters()) for pruned in (model, loaded)]
    width, d_k = 32, settings.get("head_width", 8)
    removed = len(HEADS[task]) * (4 * width * d_k + (3 * d_k if model.model.config.bias else 0))
    assert weights[0] - weights[1] == removed, "rows of Q, K, V and columns of W_o are gone"


@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_whole_sublayers_are_pruned_with_their_norms(
    norm_order: str, small_model: Callable[..., Any], tmp_path: Path
) -> None:
    """In a pre-norm model this equals ablating them."""
    model = small_model("translate", norm_order=norm_order)
    with torch.no_grad():
        for name, weight in model.model.named_parameters():
            if "norm" in name:
                weight.add_(torch.rand_like(weight))
    parts = ["encoder.1.attention", "decoder.0.cross", "decoder.1.feed_forward", "decoder.1.attention.head.2"]
    pruned, examples = model.prune(parts), examples_of("translate", model)
    loaded = heedful.load(pruned.save(tmp_path / "pruned"))
    logits = logits_of(loaded, examples, [])
    assert torch.equal(logits, logits_of(pruned, examples, []))
    assert all(isinstance(text, str) for text in loaded.translate(TEXTS))
    expected = logits_of(model, examples, [heedful.Ablate(part) for part in parts])
    assert torch.allclose(logits, expected, atol=2e-5) == (norm_order == "pre")


def test_a_pruned_model_can_be_pruned_again(small_model: Callable[..., Any]) -> None:
    model = small_model("translate")
    examples = examples_of("translate", model)
    twice = model.prune(["decoder.0.cross.head.1"]).prune(["decoder.0.cross.head.1", "encoder.0.attention.head.0"])
    heads = ["decoder.0.cross.head.1", "decoder.0.cross.head.2", "encoder.0.attention.head.0"]
    expected = logits_of(model, examples, [heedful.Ablate(head) for head in heads])
    torch.testing.assert_close(logits_of(twice, examples, []), expected, atol=2e-5, rtol=1e-4)
    assert [sublayer.heads for sublayer in twice.model.config.sublayers] == [2, 3]


def test_the_cpu_decoder_equals_torch_for_a_pruned_model(small_model: Callable[..., Any]) -> None:
    pruned = small_model("translate").prune(HEADS["translate"])
    assert pruned.backends.torch_backends[1].unsupported(SearchRequest([[1]])) is None
    answers = [list(pruned.iter_translate(TEXTS, engine="torch", exact=exact)) for exact in (False, True)]
    assert [translation.text for translation in answers[0]] == [translation.text for translation in answers[1]]
    assert {translation.backend for translation in answers[0]} == {"cpu"}


@pytest.mark.parametrize("form", ["ctranslate2", "huggingface", pytest.param("onnx", marks=pytest.mark.slow)])
def test_exports_of_a_pruned_model_give_the_same_outputs(
    form: str, small_model: Callable[..., Any], tmp_path: Path
) -> None:
    """Formats with the same number of heads in all layers store pruned heads as zeros."""
    pruned = small_model("translate", norm_order="pre").prune(HEADS["translate"])
    expected = logits_of(pruned, examples_of("translate", pruned), [])
    if form == "ctranslate2":
        answers = pruned.translate(TEXTS, engine="ctranslate2", beam=1)
        assert answers == pruned.translate(TEXTS, engine="torch", beam=1, interventions=[])
    folder = pruned.export(form, tmp_path / form)
    if form == "huggingface":
        imported = heedful.load(folder)
        assert not imported.model.config.sublayers
        torch.testing.assert_close(logits_of(imported, examples_of("translate", pruned), []), expected)
    assert any(folder.iterdir())


def test_pruning_renumbers_the_aligning_head(small_model: Callable[..., Any]) -> None:
    from heedful.inspection.attention_alignment import Alignment

    model = small_model("translate")
    model.alignment = Alignment(tap="decoder.1.cross.weights", head=2, row="output", error_rate=0.2)
    renumbered = model.prune(["decoder.1.cross.head.0", "decoder.0.cross.head.2"]).alignment
    assert (renumbered.head, renumbered.error_rate) == (1, 0.2)
    gone = model.prune(["decoder.1.cross.head.2"]).alignment
    assert (gone.head, gone.error_rate) == (None, None)
    assert model.alignment.head == 2


@pytest.mark.parametrize(
    ("task", "settings", "heads", "message"),
    [
        ("translate", {}, ["encoder.0.attention.skip"], "cannot be pruned"),
        ("translate", {}, ["encoder.0.attention.head.9"], "no head 9"),
        ("translate", {}, [f"encoder.0.attention.head.{n}" for n in range(4)], "has 4 heads, and an attention keeps"),
        ("translate", {"key_value_heads": 2}, ["encoder.0.attention.head.1"], "share 2 key/value heads"),
        ("translate", {"positions": "alibi"}, ["encoder.0.attention.head.1"], "positions='alibi' cannot be pruned"),
        ("translate", {"score": "additive"}, ["encoder.0.attention.head.1"], "score='additive' cannot be pruned"),
        ("translate recurrent", {}, ["cross"], "cannot be pruned"),
    ],
)
def test_a_part_that_cannot_be_pruned_is_one_line(
    task: str, settings: dict[str, Any], heads: list[str], message: str, small_model: Callable[..., Any]
) -> None:
    with pytest.raises(UsageError, match=message):
        small_model(task, **settings).prune(heads)


def test_pruning_the_least_important_heads_costs_less_than_chance(
    cipher_translator: Any, cipher_pairs: Callable[..., list[tuple[str, str]]]
) -> None:
    census = cipher_translator.census(cipher_pairs(60), to=["zero"])
    chosen = least_important_heads(census, 6)
    passes, _ = usable_passes(cipher_translator.scored_passes, cipher_pairs(60, seed=4), None)
    least = joint_loss(cipher_translator, passes, chosen, "zero")
    heads = least_important_heads(census)
    draws = [random.Random(seed).sample(heads, 6) for seed in range(8)]
    chance = [joint_loss(cipher_translator, passes, draw, "zero") for draw in draws]
    assert least < mean(chance) / 2
    assert sum(least < loss for loss in chance) >= 7


def test_heads_are_pruned_up_to_a_relative_rise_of_the_loss(
    cipher_translator: Any, cipher_pairs: Callable[..., list[tuple[str, str]]]
) -> None:
    census = cipher_translator.census(cipher_pairs(40), to=["zero"])
    passes, _ = usable_passes(cipher_translator.scored_passes, cipher_pairs(40), None)
    order = least_important_heads(census)
    base = joint_loss(cipher_translator, passes, [], "zero")
    chosen = heads_within(cipher_translator, passes, order, 0.5, "zero", lambda _: None)
    assert 0 < len(chosen) < len(order)
    assert chosen == order[: len(chosen)]
    assert joint_loss(cipher_translator, passes, chosen, "zero") <= 1.5 * base
    assert joint_loss(cipher_translator, passes, order[: len(chosen) + 1], "zero") > 1.5 * base


def test_every_attention_keeps_its_best_head(small_model: Callable[..., Any]) -> None:
    model = small_model("translate")
    census = model.census(examples_of("translate", model), to=["zero"])
    heads = least_important_heads(census)
    kept = {part.part for part in census.parts if part.head is not None} - {*heads}
    attentions = {part.partition(".head.")[0] for part in kept}
    heads_of = {name: [part for part in census.parts if part.part.startswith(f"{name}.head.")] for name in attentions}
    best = {max(heads, key=census.importance).part for heads in heads_of.values()}
    assert kept == best
    with pytest.raises(UsageError, match=f"prune at most {len(heads)}"):
        least_important_heads(census, len(heads) + 1)
