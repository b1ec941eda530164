"""A converted model in CTranslate2, with heedful's search settings and hypotheses.

Scores are heedful's: log P / length^α, END counted. Greedy texts are the same; a beam search stops as soon as `beam`
hypotheses have ended, as the torch search does with `early_stopping`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch

from heedful.data.batching import length_buckets
from heedful.errors import NonFiniteError, UsageError
from heedful.generation.backends.backend import Results, SearchRequest, TokenIds
from heedful.generation.backends.thread_pools import threads_per_text
from heedful.generation.backends.torch_backend import BATCH_TOKENS, DEFAULT_MAX_LENGTH, default_max_lengths
from heedful.generation.search.hypotheses import NO_PROBABILITY, Hypothesis
from heedful.generation.search.settings import SearchSettings
from heedful.interop.ctranslate2_export import Quantization, import_ctranslate2, max_positions, pad_vocabulary
from heedful.models.model_config import TransformerConfig
from heedful.text.special_tokens import END

MANY_BATCHES = 4
"""Batches per thread from which on none is split."""
SMALL_BATCH = 8
"""Texts that a part has at least, unless a thread had nothing to do."""


class EngineHypothesis(NamedTuple):
    """A hypothesis as CTranslate2 returns it; its score is already divided by length^α."""

    tokens: list[int]
    ended: bool
    score: float

    @property
    def length(self) -> int:
        return len(self.tokens) + self.ended

    def without_token_scores(self, length_penalty: float) -> Hypothesis:
        return Hypothesis(self.tokens, self.score * self.length**length_penalty, self.score, [math.nan] * self.length)

    def with_token_scores(self, length_penalty: float, log_probabilities: Sequence[float]) -> Hypothesis:
        steps = [*log_probabilities[: self.length]]
        return Hypothesis(self.tokens, sum(steps), sum(steps) / self.length**length_penalty, steps)


class CTranslate2Engine:
    """A converted model. `vocabularies`: the tokens of the source and the target, or one for both.

    `read_files` returns the content of each of its files by name; with True it first converts the model again.
    """

    def __init__(
        self,
        read_files: Callable[[bool], dict[str, bytes]],
        vocabularies: Sequence[Sequence[str]],
        config: TransformerConfig,
        quantization: Quantization = "float32",
        *,
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        self.read_files, self.config = read_files, config
        self.quantization, self.batch_tokens = quantization, batch_tokens
        self.source = pad_vocabulary(vocabularies[0], config.vocabulary)
        self.target = pad_vocabulary(vocabularies[-1], config.target_vocabulary or config.vocabulary)
        self.ids = {name: token for token, name in enumerate(self.target)}
        self.end = self.target[END]
        self._workers: dict[tuple[str, int, int], Any] = {}
        self.concurrent_calls = 1
        """Number of concurrent calls by different threads, each with one thread of the library."""

    def translate(self, request: SearchRequest) -> Results:
        """Translate in batches of similar length, all submitted at once: the library's workers start immediately."""
        sources, settings = request.texts, request.settings
        if not sources:
            return []
        lengths = [len(source) + 1 for source in sources]
        limits = self._limits(lengths, settings, request.max_lengths)
        buckets = length_buckets(lengths, self.batch_tokens // settings.beam, longest_first=True)
        batches = split_batches([bucket.tolist() for bucket in buckets])
        options = _options(settings) | {"max_input_length": 0}
        results: dict[int, list[EngineHypothesis]] = {}

        def submit(worker: Any, indices: list[int]) -> list[Any]:
            batch = request.select(indices)
            texts = [_names(source, self.source) for source in batch.texts]
            forced = None if batch.prefixes is None else self._token_names(batch.prefixes)
            limit = max(limits[i] for i in indices)
            lengths = {"min_decoding_length": min(limit, settings.rules.min_length), "max_decoding_length": limit}
            pending: list[Any] = worker.translate_batch(texts, forced, **lengths, **options)
            return pending

        with self._worker("Translator", len(batches)) as worker:
            submitted = [(indices, submit(worker, indices)) for indices in batches]
            for indices, pending in submitted:
                for i, future in zip(indices, pending, strict=True):
                    result = future.result()
                    if any(len(text) > limits[i] for text in result.hypotheses):  # ran to a longer neighbor's limit
                        result = submit(worker, [i])[0].result()
                    results[i] = self._parse(result.hypotheses, result.scores)
                request.progress(len(indices))
            ordered = [results[i] for i in range(len(sources))]
            if settings.token_log_probabilities or request.prefixes is not None:
                return self._score_tokens(worker, sources, ordered, settings.length_penalty)
        return [[text.without_token_scores(settings.length_penalty) for text in texts] for texts in ordered]

    def generate(self, request: SearchRequest) -> Results:
        """Continue prompts of equal length together: in mixed batches the library returns parts of longer prompts."""
        prompts, settings = [list(prompt) or [END] for prompt in request.texts], request.settings
        lengths = sorted({len(prompt) for prompt in prompts})
        batches = split_batches([[i for i, prompt in enumerate(prompts) if len(prompt) == n] for n in lengths])
        limit = settings.max_length or DEFAULT_MAX_LENGTH
        options = _options(settings) | {
            "min_length": min(limit, settings.rules.min_length),
            "max_length": limit,
            "include_prompt_in_result": False,
        }
        results: dict[int, list[EngineHypothesis]] = {}
        with self._worker("Generator", len(batches)) as worker:
            submitted = [
                (indices, worker.generate_batch(self._token_names([prompts[i] for i in indices]), **options))
                for indices in batches
            ]
            for indices, pending in submitted:
                for i, future in zip(indices, pending, strict=True):
                    result = future.result()
                    results[i] = self._parse(result.sequences, result.scores)
                request.progress(len(indices))
        return [
            [text.without_token_scores(settings.length_penalty) for text in results[i]] for i in range(len(prompts))
        ]

    def stream(self, request: SearchRequest) -> Iterator[int]:
        """Yield the greedy tokens after a prompt as they are chosen."""
        (names,) = self._token_names([list(prompt) or [END] for prompt in request.texts])
        with self._worker("Generator", 1) as worker:
            for step in worker.generate_tokens(names, max_length=request.settings.max_length or DEFAULT_MAX_LENGTH):
                if step.token_id == END:
                    return
                yield step.token_id

    def _limits(self, lengths: Sequence[int], settings: SearchSettings, max_lengths: Sequence[int] | None) -> list[int]:
        if max_lengths is None and settings.max_length is not None:
            max_lengths = [settings.max_length] * len(lengths)
        positions = max_positions(self.config) or math.inf
        limits = max_lengths or default_max_lengths(torch.tensor(lengths)).tolist()
        return [int(min(limit, positions)) for limit in limits]

    @contextmanager
    def _worker(self, kind: str, batches: int) -> Iterator[Any]:
        """The library's object with one single-threaded worker per batch, or several threads for a single text.

        The library changes the number of threads of the whole process, and is slow when torch's is higher.
        """
        threads = torch.get_num_threads()
        workers = max(1, min(batches, threads))
        threads_each = threads_per_text(self.config, threads // workers, self.quantization)
        replicas = max(workers, self.concurrent_calls) if threads == 1 else workers
        key = (kind, replicas, threads_each)
        if key not in self._workers:
            self._workers[key] = self._load(kind, inter_threads=replicas, intra_threads=threads_each)
        torch.set_num_threads(workers * threads_each)
        try:
            yield self._workers[key]
        finally:
            torch.set_num_threads(threads)

    def _load(self, kind: str, **threads: int) -> Any:
        make = partial(getattr(import_ctranslate2(), kind), "converted", **threads)
        try:
            return make(files=self.read_files(False))
        except RuntimeError:  # the library cannot load the files it wrote, perhaps in another build
            return make(files=self.read_files(True))

    def _token_names(self, texts: Sequence[TokenIds]) -> list[list[str]]:
        return [[self.target[token] for token in text] for text in texts]

    def _parse(self, texts: list[list[str]], scores: list[float]) -> list[EngineHypothesis]:
        parsed = []
        for names, score in zip(texts, scores, strict=True):
            if math.isnan(score):
                raise NonFiniteError(NO_PROBABILITY)
            ended = names[-1:] == [self.end]
            parsed.append(EngineHypothesis([self.ids[name] for name in names[: len(names) - ended]], ended, score))
        return parsed

    def _score_tokens(
        self,
        worker: Any,
        sources: Sequence[TokenIds],
        results: Sequence[list[EngineHypothesis]],
        length_penalty: float,
    ) -> Results:
        """Score every token in a teacher-forced pass, and rank by it: the library's own scores omit a forced prefix."""
        names = [[self.source[token] for token in source] for source in sources]
        scored = worker.score_batch(
            [source for source, texts in zip(names, results, strict=True) for _ in texts],
            self._token_names([text.tokens for texts in results for text in texts]),
            max_batch_size=self.batch_tokens,
            batch_type="tokens",
            max_input_length=0,
        )
        steps = iter(scores.log_probs for scores in scored)
        hypotheses = [[text.with_token_scores(length_penalty, next(steps)) for text in texts] for texts in results]
        return [sorted(texts, key=lambda text: -text.score) for texts in hypotheses]


def _names(tokens: Sequence[int], vocabulary: Sequence[str]) -> list[str]:
    try:
        return [vocabulary[token] for token in tokens]
    except IndexError:
        last = len(vocabulary) - 1
        raise UsageError(
            f"token id {max(tokens)} is outside the vocabulary of {len(vocabulary)} (0 to {last})"
        ) from None


def _options(settings: SearchSettings) -> dict[str, Any]:
    """The library's options for both translation and generation."""
    return {
        "beam_size": settings.beam,
        "num_hypotheses": settings.n_best,
        "length_penalty": settings.length_penalty,
        "return_scores": True,
        "return_end_token": True,
        "asynchronous": True,
    }


def split_batches(batches: list[list[int]]) -> list[list[int]]:
    """Split batches so that every thread has as much to do: into parts that take equally long.

    Two small batches on a thread each take half as long as a large one that two threads share. Many batches are not
    split, because it hardly matters which thread runs the last one.
    """
    threads = torch.get_num_threads()
    if not batches or len(batches) >= MANY_BATCHES * threads:
        return batches
    least = -(-threads // len(batches))
    parts = [min(len(batch), max(least, min(threads, len(batch) // SMALL_BATCH))) for batch in batches]
    return [batch[first::number] for batch, number in zip(batches, parts, strict=True) for first in range(number)]
