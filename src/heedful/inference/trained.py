"""A trained model with its tokenizer, ready to use: what `heedful.load` gives back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heedful.config import Config
from heedful.data.qa_reader import Question
from heedful.errors import HeedfulError, UsageError
from heedful.generation import input_splitting as reading
from heedful.generation.backends.select import Engines, Searching
from heedful.generation.continuation import max_context
from heedful.generation.decoding_config import DecodingConfig, prompt_decoding_config
from heedful.generation.incremental_detokenizer import detokenize_stream, until_stop_string
from heedful.generation.input_splitting import InputSplitting, default_input_splitting
from heedful.generation.results import Continuation, Translation
from heedful.generation.streaming import FIRST_BATCH, LARGEST_BATCH, ProgressCallback, make_rules, ignore_progress, stream_batches
from heedful.generation.terminology.glossary import Glossary
from heedful.generation.terminology.required_terms import Candidate, translate_with_requirements
from heedful.inference.classifier import ClassifierSettings, ClassifiedText, Text, classify
from heedful.inference.embedder import TextEmbedding, Vectors, embed_texts
from heedful.inference.generator import Writer, prompt_warnings
from heedful.inference.mask_filler import FilledText, MaskFiller
from heedful.inference.question_answerer import ExtractedAnswer, QuestionAnswerer, AnsweringSettings, usual_answering
from heedful.inference.translator import Links, Translator
from heedful.inspection import attention_alignment as alignment
from heedful.inspection import confidence
from heedful.inspection.attention_alignment import Alignment, align, default_alignment
from heedful.inspection.confidence import Confidence
from heedful.model_folder import load_model
from heedful.models.model_config import ModelConfig
from heedful.text.tokenizer import Tokenizer
from heedful.text.word_tokens import tokenize_words, words_from_tokens
from heedful.vectors.nearest_neighbors import WordTable
from heedful.vectors.vector_sources import load_word_table, word_table_from_model

TOKENIZER_FILE, TARGET_TOKENIZER_FILE = "tokenizer.json", "target_tokenizer.json"
TASK_FILE = "task.json"
KINDS = {
    "translate": "a translator",
    "generate": "a language model",
    "encode": "an encoder",
    "embed": "a table of word vectors",
    "fill": "a masked language model",
    "classify": "a classifier",
    "answer": "a model that answers questions",
}
HEADS = {"sequence_class": "classify", "answer_span": "answer", "masked_token": "fill"}
"""The task of a model with this head; of several, the first here."""
KEPT: dict[str, type[Config]] = {"classify": ClassifierSettings, "answer": AnsweringSettings}
"""What a task keeps beside its model, in task.json: the names of classes, say."""


class TrainedModel:
    """A model, its tokenizers, the folder they came from, and what was found out about it there."""

    def __init__(
        self,
        model: Any,
        tokenizers: tuple[Tokenizer, ...] = (),
        folder: Path | None = None,
        *,
        alignment: Alignment | None = None,
        confidence: Confidence | None = None,
        reading: InputSplitting | None = None,
        notes: Any = None,
    ) -> None:
        self.model, self.tokenizers, self.folder = model, tokenizers, folder
        self.alignment, self.confidence, self.reading = alignment, confidence, reading
        self.settings = notes
        """What its task keeps beside the model: see KEPT."""
        self.engines = Engines(model, tokenizers, folder)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.table.weight.device
        return device

    @property
    def task(self) -> str:
        """What it was made for, by its heads or else its family; an encoder without heads can only encode."""
        return task_of(self.model.config)

    def translate(self, texts: str | Sequence[str], *, progress: ProgressCallback = ignore_progress, **options: Any) -> Any:
        """A text for a text, a list for a list. Options are those of `Decoding`: beam, length_penalty, …"""
        translator = self._translator({"word_probabilities": False, **options})
        if isinstance(texts, str):
            return translator.texts([texts])[0]
        return translator.texts(list(texts), progress)

    def iter_translate(
        self, texts: Iterable[str | None], *, progress: ProgressCallback = ignore_progress, **options: Any
    ) -> Iterator[Translation]:
        """One translation a text, in order, with its words, rivals and warnings, as soon as a few are done.

        A stream may say None where no more texts are waiting: those it gave before are then translated at once.
        """
        translator = self._translator(options)
        first = LARGEST_BATCH if isinstance(texts, Sequence) else FIRST_BATCH  # of a stream, the first answers come soon
        return (answer for window in stream_batches(texts, first) for answer in translator.translations(window, progress))

    def generate(self, prompt: str = "", **options: Any) -> str:
        """Go on from a prompt; gives back prompt and continuation. Options are those of `Decoding`."""
        (answer,) = self.iter_generate([prompt], **options)
        return prompt + answer.text

    def iter_generate(
        self, prompts: Iterable[str | None], *, keep_blank: bool = False, progress: ProgressCallback = ignore_progress, **options: Any
    ) -> Iterator[Continuation]:
        """One continuation a prompt, in order, as soon as a few are done; see `translations`.

        `keep_blank`: a blank prompt is no beginning of a document, but a line that stays blank.
        """
        searching = self._for_prompts(options)
        writer = Writer(searching.generate, self.tokenizers[0], searching.decoding, max_context(self.model), keep_blank)
        return (answer for window in stream_batches(prompts) for answer in writer.continuations(window, progress))

    def stream(self, prompt: str = "", **options: Any) -> Iterator[str]:
        """What `generate` writes after the prompt, piece by piece, each as soon as it is sure."""
        searching = self._for_prompts(options)
        if searching.beam > 1 or searching.decoding.n_best > 1:
            raise UsageError("a beam decides at the end, and several answers would be mixed: one text streams, no more")
        tokens = searching.stream(self.tokenizers[0].encode([prompt])[0])
        return until_stop_string(detokenize_stream(tokens, self.tokenizers[0], context=prompt), searching.decoding.stop)

    def classify(self, texts: Text | Sequence[Text]) -> Any:
        """What a text is, with the probability of each class; a list for a list. Two texts judged together: a tuple."""
        if isinstance(texts, str | tuple):
            return self.classified([texts])[0]
        return self.classified(texts)

    def classified(self, texts: Sequence[Text]) -> list[ClassifiedText]:
        """What `classify` gives for a list."""
        self.check("classify")
        if self.settings is None:
            raise UsageError(f"{self.folder or 'this model'} does not say what its classes are ({TASK_FILE})")
        return classify(self.model, self.tokenizers[0], self.settings, list(texts))

    def embed(self, texts: str | Sequence[str], *, normalise: bool = False) -> Vectors:
        """A vector for a text; a row for each of a list: the mean of what the model makes of its tokens.

        `normalise`: at length 1, so that a product of two is their cosine.
        """
        several = [texts] if isinstance(texts, str) else list(texts)
        found = [embedded.vector for embedded in self.iter_embed(several, normalise=normalise)]
        width: int = self.model.config.width
        table = np.stack(found) if found else np.empty((0, width), np.float32)
        return table[0] if isinstance(texts, str) else table

    def iter_embed(self, texts: Iterable[str | None], *, normalise: bool = False) -> Iterator[TextEmbedding]:
        """The same, one by one as a stream goes, with warnings; see `translations`."""
        self.require_tokenizer()
        for window in stream_batches(texts, LARGEST_BATCH if isinstance(texts, Sequence) else FIRST_BATCH):
            for found in embed_texts(self.model, self.tokenizers[0], window):
                length = float(np.linalg.norm(found.vector))
                yield replace(found, vector=found.vector / length) if normalise and length else found

    @cached_property
    def words(self) -> WordTable:
        """Its tokens that are words, with their vectors: to look up what is near what."""
        self.require_tokenizer()
        return word_table_from_model(self.model, self.tokenizers[0], str(self.folder or "this model"))

    def answer(self, question: str, passage: str, **options: Any) -> ExtractedAnswer:
        """The stretch of a passage that answers a question. Options: top, threshold, stride."""
        (found,) = self.answers([(question, passage)], **options)
        return found

    def answers(self, pairs: Sequence[tuple[str, str]], **options: Any) -> list[ExtractedAnswer]:
        """The same for many questions, each with its passage."""
        return self._answerer(**options).answer(pairs)

    def iter_answer(
        self, asked: Iterable[Question], *, on_trouble: Callable[[Question, HeedfulError], object], **options: Any
    ) -> Iterator[ExtractedAnswer]:
        """The same for a stream of questions, in order and under their names, as soon as a few are done.

        Of one that cannot be read, `on_trouble` is told why.
        """
        answerer = self._answerer(**options)
        return (found for window in stream_batches(asked) for found in answerer.answer_named(window, on_trouble))

    def _answerer(self, *, top: int = 1, threshold: float | None = None, stride: int | None = None) -> QuestionAnswerer:
        self.check("answer")
        how: AnsweringSettings = self.settings or usual_answering(self.model.config)
        said = {"threshold": threshold, "stride": stride}
        how = how.with_changes(**{name: value for name, value in said.items() if value is not None})
        return QuestionAnswerer(self.model, self.tokenizers[0], how, top=top)

    def warnings(self, prompt: str) -> tuple[str, ...]:
        """What the model will not see, or not understand, of a prompt."""
        return tuple(prompt_warnings(self.tokenizers[0].encode([prompt])[0], max_context(self.model)))

    def fill(self, texts: str | Sequence[str], *, top: int = 5) -> Any:
        """The likeliest words for each [MASK]: a `Filled` for a text, a list for a list."""
        found = self.filler(top=top).fill([texts] if isinstance(texts, str) else list(texts))
        return found[0] if isinstance(texts, str) else found

    def iter_fill(self, texts: Iterable[str | None], *, top: int = 5) -> Iterator[FilledText]:
        """One answer a text, in order, as soon as a few are done; see `translations`."""
        filler = self.filler(top=top)
        return (answer for window in stream_batches(texts) for answer in filler.fill(window))

    def filler(self, *, top: int = 5) -> MaskFiller:
        """What `fill` asks."""
        self.check("fill")
        return MaskFiller(self.model, self.tokenizers[0], top=top)

    def check(self, wanted: str) -> None:
        """Refuse what this model was not made for, naming what it was."""
        if self.task != wanted:
            use = f"use `{self.task}`" if self.task != "encode" else f"it does not {wanted}"
            raise UsageError(f"{self.folder or 'this'} is {KINDS[self.task]}; {use}")
        self.require_tokenizer()

    def require_tokenizer(self) -> None:
        if not self.tokenizers:
            raise UsageError(f"{self.folder or 'this model'} has no {TOKENIZER_FILE}: give ids to its model instead")

    def _translator(self, options: dict[str, Any]) -> Translator:
        self.check("translate")
        config, decoding = self.model.config, DecodingConfig(**options)
        searching = self._searching(decoding, decoding.beam_size(), config.target_vocabulary or config.vocabulary)
        confidence = self.confidence or Confidence()
        return Translator(
            searching.translate,
            partial(self._with_required, searching),
            self.tokenizers,
            decoding,
            self.reading or default_input_splitting(config),
            Glossary.from_option(decoding.glossary),
            confidence,
            confidence.unit,
            self._align if decoding.alignments else None,
        )

    def _with_required(self, searching: Searching, *texts: Any, prefix: str) -> list[list[Candidate]]:
        how = {**searching.torch(), "hurry": False, "at_most": searching.decoding.max_length}
        return translate_with_requirements(searching.model, self.tokenizers, *texts, prefix=prefix, **how)

    def _align(self, pairs: Sequence[tuple[str, Candidate]]) -> list[Links]:
        """By the head that was found to align best; or, of a model that came without, by the usual one."""
        alignment = self.alignment or default_alignment(self.model)
        source, target = self.tokenizers[0], self.tokenizers[-1]
        cuts = [
            (
                tokenize_words(text, source, alignment.units[0]),
                words_from_tokens(answer.hypothesis.tokens, target, alignment.units[1])
                if answer.text == target.decode([answer.hypothesis.tokens])[0]
                else tokenize_words(answer.text, target, alignment.units[1]),  # it holds what the model did not write
            )
            for text, answer in pairs
        ]
        readings = align(self.model, alignment, cuts)
        return [Links(len(a.words), len(b.words), found.links) for (a, b), found in zip(cuts, readings, strict=True)]

    def _for_prompts(self, options: dict[str, Any]) -> Searching:
        self.check("generate")
        decoding = prompt_decoding_config(options)
        if decoding.prefix:
            raise UsageError("a prefix is for translations; after a prompt, put it at the prompt's end")
        return self._searching(decoding, decoding.beam_size(1), self.model.config.vocabulary)

    def _searching(self, decoding: DecodingConfig, beam: int, vocabulary: int) -> Searching:
        rules = make_rules(decoding, self.tokenizers[-1], vocabulary)
        return Searching(self.engines, decoding, rules, beam, self.engines.choose(decoding, rules))


def task_of(config: ModelConfig) -> str:
    """What a model of this configuration is for."""
    for head, task in HEADS.items():
        if head in getattr(config, "tasks", ()):
            return task
    if config.family in ("encoder", "word_vectors"):
        return "encode" if config.family == "encoder" else "embed"
    return "translate" if config.family.endswith("encoder_decoder") else "generate"


def find_notes(folder: Path, config: ModelConfig) -> Config | None:
    """What its task keeps beside a model; of one that came without, what is usual."""
    kept = KEPT.get(task_of(config))
    found: Config | None = None if kept is None else kept.read_json(folder / TASK_FILE)
    return ClassifierSettings.usual(folder, config) if kept is ClassifierSettings and found is None else found


def load_as_stored(folder: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> TrainedModel:
    """What is in a model folder, ours or in a Hugging Face layout, its special tokens numbered as they are there."""
    path = Path(folder)
    model = load_model(path, device=device)
    files = [path / name for name in (TOKENIZER_FILE, TARGET_TOKENIZER_FILE)]
    tokenizers = tuple(Tokenizer.load(file) for file in files if file.is_file())
    found = {
        "alignment": Alignment.read_json(path / alignment.ALIGNMENT_FILE),
        "confidence": Confidence.read_json(path / confidence.CONFIDENCE_FILE),
        "reading": InputSplitting.read_json(path / reading.FILE),
        "notes": find_notes(path, model.config),
    }
    return TrainedModel(model, tokenizers, path, **found)


def load_word_vectors(path: str | os.PathLike[str]) -> WordTable:
    """The word vectors in a model folder of any kind, or in a word2vec file."""
    return load_word_table(Path(path)) if Path(path).is_file() else load_as_stored(path).words
