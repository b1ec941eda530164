"""A trained model with its tokenizer, ready to use: what `heedful.load` gives back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from heedful.errors import UsageError
from heedful.folder import load_model
from heedful.generation.answers import Continuation, Translation
from heedful.generation.engine import FIRST_WINDOW, WINDOW, Progress, Search, make_rules, unwatched, windows
from heedful.generation.generate import generate_ids, generate_tokens, reach
from heedful.generation.glossary import Glossary
from heedful.generation.options import LENGTH, Decoding, for_prompts
from heedful.generation.reading import Reading, read_reading, usual_reading
from heedful.generation.required import Answer, translate_required
from heedful.generation.sampling import Draw
from heedful.generation.spelling import spelt, until
from heedful.generation.translate import translate_ids
from heedful.generation.translator import Links, Translator
from heedful.generation.writer import Writer, prompt_warnings
from heedful.inspection.alignment import Alignment, align, read_alignment, usual_alignment
from heedful.inspection.confidence import Confidence, read_confidence
from heedful.text.tokenizer import Tokenizer
from heedful.text.words import cut_text, cut_tokens

TOKENIZER, TARGET_TOKENIZER = "tokenizer.json", "target_tokenizer.json"
KINDS = {"translate": "a translator", "generate": "a language model", "encode": "an encoder"}


class Trained:
    """A model, its tokenizers, the folder they came from, and what was found out about it there."""

    def __init__(
        self,
        model: Any,
        tokenizers: tuple[Tokenizer, ...] = (),
        folder: Path | None = None,
        *,
        alignment: Alignment | None = None,
        confidence: Confidence | None = None,
        reading: Reading | None = None,
    ) -> None:
        self.model, self.tokenizers, self.folder = model, tokenizers, folder
        self.alignment, self.confidence, self.reading = alignment, confidence, reading

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.table.weight.device
        return device

    @property
    def task(self) -> str:
        """What it was made for: translate, generate or (an encoder) neither yet."""
        family: str = self.model.config.family
        return {"encoder": "encode"}.get(family, "translate" if family.endswith("encoder_decoder") else "generate")

    def translate(self, texts: str | Sequence[str], *, progress: Progress = unwatched, **options: Any) -> Any:
        """A text for a text, a list for a list. Options are those of `Decoding`: beam, length_penalty, …"""
        translator = self._translator(options)
        if isinstance(texts, str):
            return translator.texts([texts])[0]
        return translator.texts(list(texts), progress)

    def translations(
        self, texts: Iterable[str | None], *, progress: Progress = unwatched, **options: Any
    ) -> Iterator[Translation]:
        """One translation a text, in order, with its words, rivals and warnings, as soon as a few are done.

        A stream may say None where no more texts are waiting: those it gave before are then translated at once.
        """
        translator = self._translator(options)
        first = WINDOW if isinstance(texts, Sequence) else FIRST_WINDOW  # of a stream, the first answers come soon
        return (answer for window in windows(texts, first) for answer in translator.translations(window, progress))

    def generate(self, prompt: str = "", **options: Any) -> str:
        """Go on from a prompt; gives back prompt and continuation. Options are those of `Decoding`."""
        (answer,) = self.continuations([prompt], **options)
        return prompt + answer.text

    def continuations(
        self, prompts: Iterable[str | None], *, progress: Progress = unwatched, **options: Any
    ) -> Iterator[Continuation]:
        """One continuation a prompt, in order, as soon as a few are done; see `translations`."""
        decoding = self._for_prompts(options)
        writer = Writer(self._generate(decoding), self.tokenizers[0], decoding, reach(self.model))
        return (answer for window in windows(prompts) for answer in writer.continuations(window, progress))

    def stream(self, prompt: str = "", **options: Any) -> Iterator[str]:
        """What `generate` writes after the prompt, piece by piece, each as soon as it is sure."""
        decoding = self._for_prompts(options)
        if decoding.width(1) > 1 or decoding.n_best > 1:
            raise UsageError("a beam decides at the end, and several answers would be mixed: one text streams, no more")
        tokenizer = self.tokenizers[0]
        (ids,) = tokenizer.encode([prompt])
        rules = make_rules(decoding, tokenizer, self.model.config.vocabulary)
        draw = decoding.draw or Draw(temperature=0.0)
        found = generate_tokens(self.model, ids, limit=decoding.max_length or LENGTH, draw=draw, rules=rules)
        return until(spelt(found, tokenizer, after=prompt), decoding.stop)

    def warnings(self, prompt: str) -> tuple[str, ...]:
        """What the model will not see, or not understand, of a prompt."""
        return tuple(prompt_warnings(self.tokenizers[0].encode([prompt])[0], reach(self.model)))

    def check(self, wanted: str) -> None:
        """Refuse what this model was not made for, naming what it was."""
        if self.task != wanted:
            use = f"use `{self.task}`" if self.task != "encode" else f"it does not {wanted}"
            raise UsageError(f"{self.folder or 'this'} is {KINDS[self.task]}; {use}")
        if not self.tokenizers:
            raise UsageError(f"{self.folder or 'this model'} has no {TOKENIZER}: give ids to its model instead")

    def _translator(self, options: dict[str, Any]) -> Translator:
        self.check("translate")
        decoding, config = Decoding(**options), self.model.config
        searching = self._searching(decoding, decoding.width(), config.target_vocabulary or config.vocabulary)
        searching["at_most"] = decoding.max_length
        confidence = self.confidence or Confidence()
        return Translator(
            partial(translate_ids, self.model, **searching),
            partial(translate_required, self.model, self.tokenizers, **searching),
            self.tokenizers,
            decoding,
            self.reading or usual_reading(config),
            Glossary.of(decoding.glossary),
            confidence,
            confidence.unit,
            self._align if decoding.alignments else None,
        )

    def _align(self, pairs: Sequence[tuple[str, Answer]]) -> list[Links]:
        """By the head that was found to align best; or, of a model that came without, by the usual one."""
        alignment = self.alignment or usual_alignment(self.model)
        source, target = self.tokenizers[0], self.tokenizers[-1]
        cuts = [
            (
                cut_text(text, source, alignment.units[0]),
                cut_tokens(answer.hypothesis.tokens, target, alignment.units[1])
                if answer.text == target.decode([answer.hypothesis.tokens])[0]
                else cut_text(answer.text, target, alignment.units[1]),  # it holds what the model did not write
            )
            for text, answer in pairs
        ]
        readings = align(self.model, alignment, cuts)
        return [Links(len(a.words), len(b.words), found.links) for (a, b), found in zip(cuts, readings, strict=True)]

    def _generate(self, decoding: Decoding) -> Search:
        searching = self._searching(decoding, decoding.width(1), self.model.config.vocabulary)
        return partial(generate_ids, self.model, limit=decoding.max_length or LENGTH, **searching)

    def _searching(self, decoding: Decoding, beam: int, vocabulary: int) -> dict[str, Any]:
        return {
            "beam": beam,
            "length_penalty": decoding.length_penalty,
            "n_best": decoding.n_best,
            "draw": decoding.draw,
            "rules": make_rules(decoding, self.tokenizers[-1], vocabulary),
            "exact": decoding.exact,
        }

    def _for_prompts(self, options: dict[str, Any]) -> Decoding:
        self.check("generate")
        decoding = for_prompts(options)
        if decoding.prefix:
            raise UsageError("a prefix is for translations; after a prompt, put it at the prompt's end")
        return decoding


def load(folder: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> Trained:
    """What is in a model folder, ours or in a Hugging Face layout, ready to use."""
    path = Path(folder)
    model = load_model(path, device=device)
    files = [path / name for name in (TOKENIZER, TARGET_TOKENIZER)]
    tokenizers = tuple(Tokenizer.load(file) for file in files if file.is_file())
    found = {"alignment": read_alignment(path), "confidence": read_confidence(path), "reading": read_reading(path)}
    return Trained(model, tokenizers, path, **found)  # type: ignore[arg-type]
