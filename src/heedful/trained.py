"""A trained model with its tokenizer, ready to use: what `heedful.load` gives back."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from heedful.errors import UsageError
from heedful.folder import load_model
from heedful.generation.generate import generate_ids
from heedful.generation.options import LENGTH, for_prompts
from heedful.generation.translate import translate_texts
from heedful.text.tokenizer import Tokenizer

TOKENIZER, TARGET_TOKENIZER = "tokenizer.json", "target_tokenizer.json"


class Trained:
    """A model, its tokenizers and the folder they came from."""

    def __init__(self, model: Any, tokenizers: tuple[Tokenizer, ...] = (), folder: Path | None = None) -> None:
        self.model, self.tokenizers, self.folder = model, tokenizers, folder

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.table.weight.device
        return device

    @property
    def task(self) -> str:
        """What it was made for: translate, generate or (an encoder) neither yet."""
        family: str = self.model.config.family
        return {"encoder": "encode"}.get(family, "translate" if family.endswith("encoder_decoder") else "generate")

    def translate(
        self,
        texts: str | Sequence[str],
        *,
        beam: int = 4,
        length_penalty: float = 1.0,
        progress: Callable[[int], object] = lambda _: None,
    ) -> Any:
        """A text for a text, a list for a list, by beam search (beam=1: greedy)."""
        self.check("translate")
        many = [texts] if isinstance(texts, str) else list(texts)
        found = translate_texts(
            self.model, self.tokenizers, many, beam=beam, length_penalty=length_penalty, progress=progress
        )
        return found[0] if isinstance(texts, str) else found

    def generate(self, prompt: str = "", **options: Any) -> str:
        """Go on from a prompt; gives back prompt and continuation."""
        self.check("generate")
        decoding = for_prompts(options)
        ids = self.tokenizers[0].encode([prompt])[0]
        ((found, *_),) = generate_ids(
            self.model, [ids], limit=decoding.max_length or LENGTH, draw=decoding.draw, beam=decoding.width(1)
        )
        return prompt + self.tokenizers[0].decode([found.tokens])[0]

    def check(self, wanted: str) -> None:
        """Refuse what this model was not made for, naming what it was."""
        if self.task != wanted:
            raise UsageError(f"this model does not {wanted}: it is a {self.model.config.family}; use {self.task}")
        if not self.tokenizers:
            raise UsageError(f"{self.folder or 'this model'} has no {TOKENIZER}: give ids to its model instead")


def load(folder: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> Trained:
    """What is in a model folder, ours or in a Hugging Face layout, ready to use."""
    path = Path(folder)
    model = load_model(path, device=device)
    files = [path / name for name in (TOKENIZER, TARGET_TOKENIZER)]
    return Trained(model, tuple(Tokenizer.load(file) for file in files if file.is_file()), path)
