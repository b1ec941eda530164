"""Run every study in a tiny form, and check properties common to all studies."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful import lab
from heedful.lab.catalog import all_studies
from heedful.lab.fitting import fit, new_model, parameters_of
from heedful.lab.report import report_text, run_facts
from heedful.lab.studies import averaging, bottleneck, head_count, windows
from heedful.lab.studies import scale as scale_study
from heedful.lab.study import Study, Trial, Variant
from heedful.lab.study_results import Results, TrialResult
from heedful.lab.toy_tasks import CharacterTask, DateTask, ReorderTask
from heedful.layers.attention import attention_weights
from heedful.layers.multi_head_attention import MultiHeadAttention

TINY = {"steps": 2, "batches": 1, "rows": 4, "longest": 64, "repeats": 1, "points": 32}
"""Budget numbers reduced for tests; the others are small enough."""

every_study = pytest.mark.parametrize("study", all_studies().values(), ids=lambda study: study.name)


def tiny(study: Study) -> Study:
    """The study with its first and its last variant and hardly any training."""
    budget = {name: min(number, TINY.get(name, number)) for name, number in study.budget_of(quick=True).items()}
    return replace(study, budget=budget, quick={}, variants=(study.variants[0], study.variants[-1]))


@cache
def measured_by(name: str, variant: Variant) -> Mapping[str, Any]:
    """The measurements of a study for one variant in a tiny trial."""
    study = all_studies()[name]
    return study.measure(Trial(variant, 1, tiny(study).budget, torch.device("cpu")))


@every_study
def test_a_tiny_trial_measures_what_the_study_declares(study: Study) -> None:
    declared = {measure.key: measure.optional for measure in (*study.measures, *study.curves)}
    for variant in tiny(study).variants:
        measured = measured_by(study.name, variant)
        assert measured.keys() <= declared.keys()
        assert all(key in measured for key, optional in declared.items() if not optional)
        numbers = [number for value in measured.values() for number in ([value] if isinstance(value, float) else value)]
        assert numbers
        assert all(math.isfinite(number) for number in numbers)


@every_study
def test_every_variant_differs_from_another_in_one_factor(study: Study) -> None:
    def differences(first: Variant, second: Variant) -> int:
        return sum(a != b for a, b in zip(first.factors, second.factors, strict=True))

    for variant in study.variants:
        assert any(differences(variant, other) == 1 for other in study.variants), variant


@every_study
def test_reports_can_be_computed_from_any_numbers(study: Study) -> None:
    """Predictions name existing variants and measures; the answer has three sentences whatever the measurements."""

    def number(seed: int, row: int) -> float:
        return 0.5 + 0.01 * row + 0.001 * seed * row

    def measured(seed: int, row: int) -> dict[str, Any]:
        curves: dict[str, Any] = {curve.key: [number(seed, row)] * 12 for curve in study.curves}
        return {**curves, **{measure.key: number(seed, row) for measure in study.measures}}

    trials = [
        TrialResult(variant, seed, measured(seed, row), 1.0)
        for row, variant in enumerate(study.variants)
        for seed in (1, 2, 3)
    ]
    results = Results(study, tuple(trials))
    outcomes = [prediction.decide(results) for prediction in study.predictions]
    text = report_text(results, outcomes, run_facts(results, quick=False, device=torch.device("cpu")))
    answer = text.split("## Answer")[1].split("![")[0]
    assert all(prediction.statement in answer for prediction in study.predictions)
    assert study.concept.startswith(("Q", "A", "T"))


def test_the_study_of_teaching_finds_a_missing_look_ahead_mask() -> None:
    healthy, cheating = tiny(all_studies()["teaching"]).variants
    assert measured_by("teaching", healthy)["leak"] == 0
    assert measured_by("teaching", cheating)["leak"] == 1


def test_the_study_of_order_finds_missing_positions() -> None:
    without_order, with_order = tiny(all_studies()["order"]).variants
    assert measured_by("order", without_order)["equivariance"] < 1e-5
    assert measured_by("order", with_order)["equivariance"] > 1e-3


def test_the_study_of_skips_finds_dropped_skip_connections() -> None:
    """In a deep stack, tokens become alike without skip-connections, and stay distinct with them."""
    shallow, dropped = tiny(all_studies()["skips"]).variants
    assert measured_by("skips", shallow)["spread"] > 0.5
    assert measured_by("skips", dropped)["spread"] < 0.1


def test_all_forms_of_attention_have_nearly_the_same_number_of_parameters() -> None:
    sizes = {
        form: measured_by("form", Variant((("form", form),)))["parameters"] for form in ("softmax", "net over pairs")
    }
    assert sizes["net over pairs"] == pytest.approx(sizes["softmax"], rel=0.01)


def test_wider_heads_have_as_many_parameters_as_the_feed_forward_network_that_they_replace() -> None:
    task = CharacterTask(context=48)
    sizes = {name: parameters_of(task, {**averaging.BLOCKS[name], "layers": 4}) for name in averaging.BLOCKS}
    assert sizes["wider heads instead"] == pytest.approx(sizes["with"], rel=0.01)
    assert sizes["without"] < 0.7 * sizes["with"]


def test_entropy_is_constant_over_widths_only_with_the_root_of_the_width() -> None:
    """Scores of wide heads saturate the softmax without a factor (Q4)."""
    torch.manual_seed(1)
    entropies = {}
    for d_k in (4, 256):
        query, key = (torch.randn(4, 64, d_k) for _ in range(2))
        for scale, power in scale_study.FACTORS.items():
            entropies[scale, d_k] = scale_study.entropy(attention_weights(query * d_k ** (0.5 - power), key))
    assert entropies["1/sqrt(d_k)", 4] == pytest.approx(entropies["1/sqrt(d_k)", 256], abs=0.05)
    assert entropies["1", 256] < 0.15 < 0.5 < entropies["1", 4]


def test_attention_preserves_the_gradient_of_the_first_word() -> None:
    """T6: without attention the gradient passes through every state of the encoder; with attention it does not."""
    torch.manual_seed(1)
    task, device = ReorderTask("copy", longest=16), torch.device("cpu")
    reach = {
        name: bottleneck.gradient_to_first_word(new_model(task, **bottleneck.MODELS[name]), 32, device)
        for name in ("one vector", "with attention", "transformer")
    }
    assert reach["one vector"] < 0.01
    assert min(reach["with attention"], reach["transformer"]) > 0.1


def test_positions_added_before_a_plain_sum_do_not_encode_order() -> None:
    """Q9: Σ_i (x_i + p_i) is the same for every order; Σ_i f(x_i + p_i) and a concatenation are not."""
    torch.manual_seed(1)
    tokens = torch.arange(windows.WINDOW)[None]
    for combine in (windows.CONCATENATED, windows.SUMMED, windows.POSITIONS, windows.EACH):
        net = windows.WindowNet(combine, 16, 2).double()
        same = torch.allclose(net(tokens), net(tokens.flip(1)), rtol=1e-9)
        assert same == (combine in (windows.SUMMED, windows.POSITIONS)), combine


def test_the_census_of_heads_finds_the_needed_head() -> None:
    """If W_o is 0 for all attention heads but one, the outputs depend on that head alone."""
    torch.manual_seed(1)
    task = DateTask(("en",))
    model: Any = fit(task, Trial(Variant(()), 1, {}, torch.device("cpu")), steps=40, model={"heads": 4}).model
    with torch.no_grad():
        for attention in (module for module in model.modules() if isinstance(module, MultiHeadAttention)):
            attention.output.weight[:, 16:] = 0
    falls = head_count.census(model, task)
    assert len(falls) == 12
    assert [number for number, fall in enumerate(falls) if fall] == [n for n in (0, 4, 8) if falls[n]]
    assert any(falls)


def test_studies_use_public_names_only() -> None:
    """Studies use settings, taps and public functions, but no private names of other modules."""
    private = []
    for path in sorted(Path(lab.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("heedful"):
                private += [(path.name, alias.name) for alias in node.names if alias.name[0] == "_" != alias.name[1]]
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
                private.append((path.name, node.attr))
    assert private == []
