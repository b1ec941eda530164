"""A small translator with random weights, for commands that need a model and not a good one."""

from __future__ import annotations

from pathlib import Path

import torch

import heedful
from heedful.loading import wrap_model
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_kinds import TokenizerConfig

TEXTS = ["a small dog runs in the green park", "two men ride a red bicycle by the river"]


def save_untrained_translator(folder: Path) -> Path:
    """Save a translator that knows the words of TEXTS."""
    tokenizer = Tokenizer.train(TEXTS * 3, TokenizerConfig(kind="words", vocabulary=40))
    torch.manual_seed(2)
    network = heedful.build("laptop-translator", vocabulary=len(tokenizer), width=32, heads=4, layers=2).eval()
    return Path(wrap_model(network, (tokenizer,)).save(folder))
