"""Fixtures shared by the parity tests."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import heedful
from heedful.data.dates_corpus import Dates, dates_corpus
from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.torch_backend import TorchBackend
from heedful.generation.search.settings import SearchSettings
from heedful.inference.trained_model import TrainedModel
from heedful.loading import wrap_model
from heedful.text.special_tokens import END, PAD, START
from heedful.text.tokenizer import Tokenizer, TokenizerConfig


@pytest.fixture(autouse=True)
def _separate_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def dates() -> Dates:
    return dates_corpus(train=2000, valid=20, test=60, languages=("en", "de", "fr"))


@pytest.fixture(scope="session")
def held_out(dates: Dates) -> list[str]:
    """Fifty held-out sentences."""
    return [pair.source for pair in dates.test[:50]]


SMALL: dict[str, Any] = {"width": 32, "heads": 4, "layers": 2, "feed_forward": 64, "dropout": 0.0, "max_length": 64}


@pytest.fixture(scope="session")
def translator(dates: Dates) -> TrainedModel:
    """Dates to ISO 8601, pre-norm and sinusoidal: a design every format can express; trained briefly."""
    tokenizer = character_tokenizer(dates)
    torch.manual_seed(0)
    model = heedful.build("laptop-translator", **SMALL, decoder_layers=1, vocabulary=len(tokenizer))
    sources = tokenizer.encode([pair.source for pair in dates.train])
    targets = tokenizer.encode([pair.target for pair in dates.train])

    def loss(rows: list[int]) -> Tensor:
        source = padded([[*sources[row], END] for row in rows])
        target = padded([[START, *targets[row], END] for row in rows])
        logits = model(source, target[:, :-1], (source != PAD).sum(1))
        return cross_entropy(logits.transpose(1, 2), target[:, 1:], ignore_index=PAD)

    return wrap_model(train(model, loss, len(sources), steps=100), (tokenizer,))


@pytest.fixture(scope="session")
def writer(dates: Dates) -> TrainedModel:
    """A language model of dates, with rotary positions, RMSNorm and gates."""
    tokenizer = character_tokenizer(dates)
    torch.manual_seed(0)
    model = heedful.build("llama-135m", **{**SMALL, "key_value_heads": 2}, vocabulary=len(tokenizer))
    texts = tokenizer.encode([f"{pair.source} = {pair.target}" for pair in dates.train])

    def loss(rows: list[int]) -> Tensor:
        text = padded([[END, *texts[row], END] for row in rows])
        return cross_entropy(model(text[:, :-1]).transpose(1, 2), text[:, 1:], ignore_index=PAD)

    return wrap_model(train(model, loss, len(texts), steps=60), (tokenizer,))


@pytest.fixture(scope="session")
def translations(translator: TrainedModel, held_out: list[str]) -> list[list[int]]:
    """Greedy translations of the held-out sentences."""
    sources = translator.tokenizers[0].encode(held_out)
    results = TorchBackend(translator.model).translate(SearchRequest(sources, SearchSettings(beam=1, max_length=14)))
    texts = [hypotheses[0].tokens for hypotheses in results]
    assert len({*map(tuple, texts)}) > 30  # outputs depend on the input
    return texts


@pytest.fixture(scope="session")
def prompts(writer: TrainedModel, held_out: list[str]) -> list[list[int]]:
    return writer.tokenizers[0].encode([text[:6] for text in held_out])


@pytest.fixture(scope="session")
def continuations(writer: TrainedModel, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy continuations of up to 20 tokens."""
    results = TorchBackend(writer.model).generate(SearchRequest(prompts, SearchSettings(beam=1, max_length=20)))
    return [hypotheses[0].tokens for hypotheses in results]


def character_tokenizer(dates: Dates) -> Tokenizer:
    texts = [f"{pair.source} = {pair.target}" for pair in dates.train]
    return Tokenizer.train(texts, TokenizerConfig(kind="characters", vocabulary=150))


def padded(rows: list[list[int]]) -> Tensor:
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def train(model: Any, loss: Any, size: int, steps: int) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(torch.randint(size, (32,), generator=generator).tolist()).backward()
        optimizer.step()
    return model.eval()
