"""Attributions equal those of captum, PyTorch's reference implementations, where the definitions agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from captum.attr import FeatureAblation, InputXGradient, IntegratedGradients
from torch import Tensor

import heedful
from heedful.inspection.attribution.explained_output import ExplainedOutput, explained_outputs, log_probabilities
from heedful.inspection.attribution.gradients import gradient_times_input, integrated_gradients
from heedful.inspection.attribution.leave_out import occlusion
from heedful.inspection.text_pass import run_passes
from heedful.loading import wrap_model
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_kinds import TokenizerConfig

TEXTS = {
    "translate": "a small dog runs",
    "translate recurrent": "two men ride a bicycle",
    "generate": "a small dog runs in the park",
    "generate recurrent": "two men ride a bicycle",
    "classify": "a small dog runs",
    "fill": "two [MASK] ride a bicycle",
    "answer": "who runs\ta boy in a blue shirt runs",
}
PRESETS = {
    "translate": "laptop-translator", "translate recurrent": "recurrent-translator", "generate": "laptop-writer",
    "generate recurrent": "recurrent-writer", "classify": "laptop-reader", "fill": "laptop-reader",
    "answer": "laptop-reader",
}  # fmt: skip
HEADS = {"classify": "sequence_class", "fill": "masked_token", "answer": "answer_span"}
STEPS = 12


@pytest.fixture(scope="module")
def model_of() -> Callable[[str], Any]:
    tokenizer = Tokenizer.train([*TEXTS.values()] * 3, TokenizerConfig(kind="words", vocabulary=60))

    def build(task: str) -> Any:
        torch.manual_seed(0)
        sizes: dict[str, Any] = {"width": 32} if "recurrent" in task else {"width": 32, "heads": 4, "layers": 2}
        tasks = {"tasks": [HEADS[task]]} if task in HEADS else {}
        return wrap_model(
            heedful.build(PRESETS[task], vocabulary=len(tokenizer), **sizes, **tasks).eval(), (tokenizer,)
        )

    return build


def output_of(model: Any, task: str) -> ExplainedOutput:
    """The last output of the text's pass."""
    target = "the green park" if task.startswith("translate") else "" if task.startswith("generate") else None
    return explained_outputs(model.text_pass(TEXTS[task], target))[-1]


def from_vectors(model: Any, output: ExplainedOutput) -> Callable[[Tensor], Tensor]:
    """log p of the output as a function of its input's token vectors, for several rows at once."""
    tap = "embedding.tokens" if output.text_pass.target is None else "source.tokens"

    def forward(vectors: Tensor) -> Tensor:
        passes = [output.text_pass] * len(vectors)
        with heedful.edit(model.model, {tap: vectors}):
            logits = run_passes(model.model, passes)
        return torch.stack(
            [log_probabilities(model, *pass_and_logits).sum() for pass_and_logits in zip(passes, logits, strict=True)]
        )

    return forward


def of_words(output: ExplainedOutput, attributions: Tensor) -> np.ndarray[Any, Any]:
    tokens = attributions.sum(-1)[0].detach().numpy()
    return np.array([tokens[list(indices)].sum() for indices in output.tokens_of_words])


@pytest.mark.parametrize("task", TEXTS)
def test_integrated_gradients(model_of: Callable[[str], Any], task: str) -> None:
    model = model_of(task)
    output = output_of(model, task)
    vectors = model.model.table(torch.tensor([output.text_pass.inputs.ids])).detach()
    baseline = vectors.clone()
    for tokens in output.tokens_of_words:
        baseline[0, list(tokens)] = model.model.table.weight[model.blank_token].detach()
    expected = IntegratedGradients(from_vectors(model, output)).attribute(
        vectors, baseline, n_steps=STEPS, method="gausslegendre"
    )
    (scores,) = integrated_gradients(model, [output], STEPS)
    np.testing.assert_allclose(scores, of_words(output, expected), atol=1e-5, rtol=1e-3)
    assert np.abs(scores).max() > 1e-3


@pytest.mark.parametrize("task", TEXTS)
def test_gradient_times_input(model_of: Callable[[str], Any], task: str) -> None:
    model = model_of(task)
    output = output_of(model, task)
    vectors = model.model.table(torch.tensor([output.text_pass.inputs.ids])).detach().requires_grad_()
    expected = InputXGradient(from_vectors(model, output)).attribute(vectors)
    (scores,) = gradient_times_input(model, [output])
    np.testing.assert_allclose(scores, of_words(output, expected), atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("task", ["fill", "answer"])
def test_occlusion_is_feature_ablation_with_the_mask_token(model_of: Callable[[str], Any], task: str) -> None:
    model = model_of(task)
    output = output_of(model, task)
    tokens = torch.tensor([output.text_pass.inputs.ids])
    features = torch.full_like(tokens, len(output.words))
    for index, positions in enumerate(output.tokens_of_words):
        features[0, list(positions)] = index
    vectors_to_score = from_vectors(model, output)
    expected = FeatureAblation(lambda ids: vectors_to_score(model.model.table(ids))).attribute(
        tokens, baselines=model.occluding_token, feature_mask=features
    )
    (scores,) = occlusion(model, [output])
    np.testing.assert_allclose(
        scores, [expected[0, indices[0]].item() for indices in output.tokens_of_words], atol=1e-5
    )
