"""Small models of every family and task, with random weights."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import heedful
from heedful.data.collate import pad_sequences
from heedful.loading import wrap_model
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_kinds import TokenizerConfig

TEXTS = ["a small dog runs in the green park", "two men ride a bicycle", "who runs\ta boy in a blue shirt runs"]
PRESETS = {
    "translate": "laptop-translator",
    "translate recurrent": "recurrent-translator",
    "generate": "laptop-writer",
    "generate recurrent": "recurrent-writer",
    "classify": "laptop-reader",
    "fill": "laptop-reader",
    "answer": "laptop-reader",
    "encode": "laptop-reader",
}
HEADS = {"classify": "sequence_class", "fill": "masked_token", "answer": "answer_span"}


@pytest.fixture(scope="session")
def small_model() -> Callable[..., Any]:
    """Build the model of a task, with random weights whose outputs depend on the inputs."""
    tokenizer = Tokenizer.train(TEXTS * 3, TokenizerConfig(kind="words", vocabulary=60))

    def build(task: str, **changes: Any) -> Any:
        torch.manual_seed(0)
        sizes: dict[str, Any] = {"width": 32} if "recurrent" in task else {"width": 32, "heads": 4, "layers": 2}
        tasks = {"tasks": [HEADS[task]] if task in HEADS else []} if PRESETS[task] == "laptop-reader" else {}
        model = heedful.build(PRESETS[task], vocabulary=len(tokenizer), **{**sizes, **tasks, **changes}).eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() == 2:
                    weight.mul_(1.6)
        return wrap_model(model, (tokenizer,))

    return build


@pytest.fixture(scope="session")
def texts_of() -> Callable[[str], list[str]]:
    """Input texts of a task."""

    def texts(task: str) -> list[str]:
        if task == "fill":
            return ["a small [MASK] runs", "two [MASK] ride a [MASK]"]
        return [TEXTS[2], "who rides\ttwo men ride a bicycle"] if task == "answer" else TEXTS[:2]

    return texts


WORDS = [f"w{number}" for number in range(20)]
CIPHER = {word: f"v{(7 * number + 3) % 20}" for number, word in enumerate(WORDS)}


@pytest.fixture(scope="session")
def cipher_pairs() -> Callable[..., list[tuple[str, str]]]:
    """Pairs of a word-by-word substitution cipher, whose words are aligned in order."""

    def pairs(count: int, seed: int = 9) -> list[tuple[str, str]]:
        generator = random.Random(seed)
        texts = [generator.sample(WORDS, generator.randint(3, 8)) for _ in range(count)]
        return [(" ".join(words), " ".join(CIPHER[word] for word in words)) for words in texts]

    return pairs


@pytest.fixture(scope="session")
def cipher_translator(cipher_pairs: Callable[..., list[tuple[str, str]]]) -> Any:
    """A small translator that has learned the cipher: 99 of 100 words right."""
    torch.manual_seed(0)
    tokenizer = Tokenizer.train([" ".join([*WORDS, *CIPHER.values()])], TokenizerConfig(kind="words", vocabulary=60))
    sizes = {"width": 32, "heads": 4, "layers": 1, "decoder_layers": 2, "dropout": 0.0}
    model = heedful.build("laptop-translator", vocabulary=len(tokenizer), **sizes).train()
    translator = wrap_model(model, (tokenizer,))
    passes = translator.text_passes(*map(list, zip(*cipher_pairs(1024, seed=1), strict=True)))
    optimizer, generator = torch.optim.Adam(model.parameters(), 3e-3, betas=(0.9, 0.98)), random.Random(2)
    for _ in range(250):
        batch = generator.sample(passes, 64)
        source, lengths = pad_sequences([text_pass.inputs.ids for text_pass in batch])
        target, _ = pad_sequences([text_pass.output_row.ids for text_pass in batch])
        labels, _ = pad_sequences([[output.label for output in text_pass.outputs] for text_pass in batch])
        logits = model(source, target, lengths).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    return translator
