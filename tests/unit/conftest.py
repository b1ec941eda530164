"""Small models that write something: random, but sharper than fresh ones, so that texts differ and end."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

import heedful
from heedful.data.dates_corpus import dates_corpus
from heedful.inference.trained_model import TrainedModel
from heedful.loading import wrap_model
from heedful.text.special_tokens import END
from heedful.text.tokenizer import Tokenizer, TokenizerConfig


@cache
def _texts() -> list[str]:
    pairs = dates_corpus(train=1, valid=300, test=1).valid
    return [text for pair in pairs for text in (pair.source, pair.target)]


def _model(name: str, vocabulary: int = 11, *, seed: int = 4, sharper: float = 3.0, **settings: Any) -> Any:
    """An output table of its own, drawn wide, makes it sure of itself and keeps it from repeating what it read."""
    torch.manual_seed(seed)
    size = {"width": 16} if name.startswith("recurrent") else {"width": 16, "heads": 2, "layers": 2}
    model = heedful.build(name, vocabulary=vocabulary, **{**size, "tie_output": False, **settings}).eval()
    head = model.next_token if name.startswith("recurrent") else model.heads.next_token
    with torch.no_grad():
        head.weight.mul_(sharper)
        head.weight[END].mul_(1.5)  # and lets it end sometimes
    return model


@cache
def _tokenizer(kind: str = "characters", vocabulary: int = 300) -> Tokenizer:
    return Tokenizer.train(_texts(), TokenizerConfig(kind=kind, vocabulary=vocabulary))  # type: ignore[arg-type]


def _trained(name: str, kind: str = "characters", **settings: Any) -> TrainedModel:
    tokenizer = _tokenizer(kind)
    return wrap_model(_model(name, len(tokenizer), **settings), (tokenizer,))


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Any]:
    return _model


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., Tokenizer]:
    return _tokenizer


@pytest.fixture(scope="session")
def make_trained() -> Callable[..., TrainedModel]:
    return _trained


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return _texts()
