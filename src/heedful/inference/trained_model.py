"""TrainedModel: the base of everything `heedful.load` returns, and what all of them can do: embed and export."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, overload

import numpy as np

from heedful.inference.inspectable_model import InspectableModel
from heedful.inference.text_arguments import text_batches, text_list
from heedful.inference.text_embedding import TextEmbedding, Vectors, embed_texts
from heedful.inference.word_states import LAST, WordStates, word_states
from heedful.interventions.kinds import Intervention, as_interventions
from heedful.vectors.model_word_table import word_table_from_model
from heedful.vectors.nearest_neighbors import WordTable


class _TextReader(InspectableModel):
    """Adapter of a model of any task for embedding: it reads a text without producing an output."""

    kind = "a model that embeds"

    def reading(self, text: str, target: str | None = None) -> Callable[[], object]:
        return partial(embed_texts, self.model, self.tokenizer, [text])


class TrainedModel(InspectableModel):
    """A trained model with its tokenizers and settings, ready to use on text.

    `heedful.load` returns a Translator, Generator, Classifier, QuestionAnswerer, MaskFiller or Embedder.
    """

    kind = "a trained model"

    def embed(
        self,
        text: str | Sequence[str],
        *,
        normalize: bool = False,
        interventions: Sequence[Intervention] | None = None,
    ) -> Vectors:
        """Embed a text as a vector, or a list of texts as rows: the mean of the hidden states of its tokens.

        `normalize`: scale vectors to length 1, so that the product of two is their cosine.
        """
        texts, single = text_list(text)
        vectors = [
            embedding.vector for embedding in self.iter_embed(texts, normalize=normalize, interventions=interventions)
        ]
        table = np.stack(vectors) if vectors else np.empty((0, self.model.config.width), np.float32)
        return table[0] if single else table

    def iter_embed(
        self,
        texts: Iterable[str | None],
        *,
        normalize: bool = False,
        interventions: Sequence[Intervention] | None = None,
    ) -> Iterator[TextEmbedding]:
        """Embed a stream of texts lazily and in order, with warnings. None in the stream flushes what came before."""
        embedder, checked = self._embedder(), as_interventions(interventions)
        embed = partial(embed_texts, self.model, self.tokenizer)
        for batch in text_batches(texts):
            for embedding in embedder.intervened(embed, batch, checked):
                norm = float(np.linalg.norm(embedding.vector))
                yield replace(embedding, vector=embedding.vector / norm) if normalize and norm else embedding

    # fmt: off
    @overload
    def word_states(  # type: ignore[overload-overlap]
        self, text: str, *, layer: int = ..., interventions: Sequence[Intervention] | None = ...
    ) -> WordStates: ...
    @overload
    def word_states(
        self, text: Sequence[str], *, layer: int = ..., interventions: Sequence[Intervention] | None = ...
    ) -> list[WordStates]: ...
    def word_states(
        self, text: str | Sequence[str], *, layer: int = LAST, interventions: Sequence[Intervention] | None = None
    ) -> WordStates | list[WordStates]:
        """The vector of every word of a text in its context: "bank" in two sentences has two (E4).

        `layer`: after which layer, counted from 0; -1 is the last. A word is the text between blanks; its vector is
        the mean of the states of its tokens, without those of the punctuation around it.
        """
        texts, single = text_list(text)
        words = list(self.iter_word_states(texts, layer=layer, interventions=interventions))
        return words[0] if single else words
    # fmt: on

    def iter_word_states(
        self,
        texts: Iterable[str | None],
        *,
        layer: int = LAST,
        interventions: Sequence[Intervention] | None = None,
    ) -> Iterator[WordStates]:
        """The words of a stream of texts with their vectors, lazily and in order. None in the stream flushes."""
        embedder, checked = self._embedder(), as_interventions(interventions)
        states = partial(word_states, self.model, self.tokenizer, layer=layer)
        for batch in text_batches(texts):
            yield from embedder.intervened(states, batch, checked)

    def _embedder(self) -> InspectableModel:
        """This model in the form that embeds a text: interventions count the words of that text."""
        return _TextReader(self.model, self.tokenizers, self.folder, means=self.means)

    @cached_property
    def words(self) -> WordTable:
        """The vectors of all tokens that are whole words, for similarity and analogy."""
        return word_table_from_model(self.model, self.tokenizer, self.name)

    def export(
        self, to: str, folder: str | os.PathLike[str], *, quantization: Literal["float32", "int8"] = "float32"
    ) -> Path:
        """Export for another library: "huggingface", "ctranslate2", "onnx" or "word2vec"."""
        from heedful.interop.conversion import export

        return export(self, to, folder, quantization=quantization)
