"""A server of small random models of every task, on loopback, by the protocol and the server that `serve` runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import heedful
from heedful.data.dates_corpus import dates_corpus
from heedful.inference.trained_model import TrainedModel
from heedful.loading import wrap_model
from heedful.server.language_pairs import LanguagePair
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_kinds import TokenizerConfig
from served import RunningServer, running

HEADS = {"classify": "sequence_class", "fill": "masked_token", "answer": "answer_span"}
WORDS = ["a small dog runs in the green park", "two men ride a bicycle", "who runs", "a boy in a blue shirt runs"]


@pytest.fixture(scope="session")
def models(make_trained: Callable[..., TrainedModel]) -> dict[str, Any]:
    """One model of each task."""
    served: dict[str, Any] = {"dates": make_trained("laptop-translator"), "writer": make_trained("laptop-writer")}
    tokenizer = Tokenizer.train(WORDS * 3, TokenizerConfig(kind="words", vocabulary=60))
    for task, head in HEADS.items():
        torch.manual_seed(0)
        sizes: dict[str, Any] = {"width": 16, "heads": 2, "layers": 1, "tasks": [head]}
        model = heedful.build("laptop-reader", vocabulary=len(tokenizer), **sizes).eval()
        served[task] = wrap_model(model, (tokenizer,))
    return served


@pytest.fixture(scope="session")
def server(models: dict[str, Any]) -> Iterator[RunningServer]:
    with running(models, languages={"dates": LanguagePair("en", "de")}) as started:
        yield started


@pytest.fixture(scope="session")
def sources() -> list[str]:
    return [pair.source for pair in dates_corpus(train=1, valid=200, test=1).valid]
