"""CTranslate2 behind the same calls: an engine in C++ for transformers on a CPU, with int8 if wished.

Scores are ours: log P / length^α, END counted. One thing differs with a beam: it stops as soon as `beam` texts have
ended, ours goes on while a living one can still win. Greedy texts are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from heedful.errors import HeedfulError
from heedful.generation.search import Hypothesis
from heedful.generation.translate import length_limit
from heedful.interop.ctranslate2 import library, obstacle, position_rows
from heedful.layers.taps import Tapped
from heedful.text.special import END, SPECIAL_TOKENS

Ids = Sequence[int]
WIDE = 384
"""From this width on, the matrices of a single text are worth a second thread (measured: docs/export.md)."""


def unfit(model: Any, *, longest: int = 0) -> str | None:
    """Why CTranslate2 cannot serve this model as it is now, for texts up to `longest` tokens; None: it can."""
    try:
        library()
    except HeedfulError as error:
        return str(error)
    if problem := obstacle(model.config):
        return f"ctranslate2 cannot express {problem}"
    if (device := model.table.weight.device).type != "cpu":
        return f"the model is on {device}; ctranslate2 serves the CPU here"
    if any(part.listeners for part in model.modules() if isinstance(part, Tapped)):
        return "taps are listening, and only torch has them"
    rows = position_rows(model.config)
    if rows is not None and longest > rows:
        return f"{longest} tokens are more than the {rows} positions ctranslate2 was given"
    return None


class Found(NamedTuple):
    """A text as the engine gives it back; its score is already divided by length^α."""

    tokens: list[int]
    ended: bool
    score: float

    def scored(self, length_penalty: float, steps: Sequence[float] = (), *, again: bool = False) -> Hypothesis:
        share = (len(self.tokens) + self.ended) ** length_penalty
        each = [*steps[: len(self.tokens) + self.ended]]
        total = sum(each) if again else self.score * share
        return Hypothesis(self.tokens, total, total / share, each)


class CTranslate2:
    """A converted model, ready to search. `names` are its vocabularies: source and target, or one for both."""

    def __init__(self, folder: Path, names: Sequence[Sequence[str]], width: int) -> None:
        self.folder, self.width = folder, width
        self.source, self.target = names[0], names[-1]
        self.ids = {name: token for token, name in enumerate(self.target)}
        self.end = SPECIAL_TOKENS[END]
        self._running: dict[tuple[str, int, int], Any] = {}

    def translate_ids(
        self,
        sources: Sequence[Ids],
        *,
        beam: int = 4,
        length_penalty: float = 1.0,
        prefixes: Sequence[Ids] | None = None,
        at_most: Sequence[int] | None = None,
        at_least: int = 0,
        forbidden: Sequence[Ids] = (),
        tokens: int = 8192,
        each_token: bool = True,
        progress: Callable[[int], object] = lambda _: None,
    ) -> list[list[Hypothesis]]:
        """The n-best targets of each source, in the given order: `generation.translate.translate_ids` by this engine.

        `at_least` tokens before the end; `forbidden` sequences of tokens never appear. Without `each_token` the
        probability of single tokens is left out, which saves a pass.
        """
        if not sources:
            return []
        lengths = torch.tensor([len(source) + 1 for source in sources], dtype=torch.long)
        limits: list[int] = length_limit(lengths).tolist()
        if at_most is not None:
            limits = [min(pair) for pair in zip(limits, at_most, strict=True)]
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
        chunks, start = [], 0
        while start < len(order):
            size = max(1, tokens // (beam * (len(sources[order[start]]) + 1)))
            chunks.append(order[start : start + size])
            start += size
        engine = self._engine("Translator", len(sources), len(chunks))
        options: dict[str, Any] = {"beam_size": beam, "num_hypotheses": beam, "length_penalty": length_penalty}
        options |= {"min_decoding_length": at_least, "suppress_sequences": self._spelt(forbidden) or None}
        options |= {"return_scores": True, "return_end_token": True, "max_input_length": 0, "asynchronous": True}
        results: dict[int, list[Found]] = {}

        def ask(rows: list[int]) -> list[Any]:
            texts = [[self.source[token] for token in sources[i]] for i in rows]
            forced = None if prefixes is None else self._spelt([prefixes[i] for i in rows])
            limit = max(limits[i] for i in rows)
            waiting: list[Any] = engine.translate_batch(texts, forced, max_decoding_length=limit, **options)
            return waiting

        asked = [(rows, ask(rows)) for rows in chunks]  # its workers begin at once
        for rows, waiting in asked:
            for i, one in zip(rows, waiting, strict=True):
                answer = one.result()
                if any(len(text) > limits[i] for text in answer.hypotheses):  # it was given a longer neighbour's limit
                    answer = ask([i])[0].result()
                results[i] = self._read(answer.hypotheses, answer.scores)
            progress(len(rows))
        found = [results[i] for i in range(len(sources))]
        if each_token or prefixes is not None:
            return self._with_tokens(engine, sources, found, length_penalty, tokens, again=prefixes is not None)
        return [[text.scored(length_penalty) for text in texts] for texts in found]

    def continue_ids(
        self,
        prompts: Sequence[Ids],
        *,
        limit: int,
        beam: int = 1,
        length_penalty: float = 1.0,
        at_least: int = 0,
        forbidden: Sequence[Ids] = (),
    ) -> list[list[Hypothesis]]:
        """The likeliest continuations of each prompt, up to `limit` tokens (a language model)."""
        engine = self._engine("Generator", len(prompts), 1)
        found = engine.generate_batch(
            self._spelt(prompts),
            beam_size=beam,
            num_hypotheses=beam,
            length_penalty=length_penalty,
            min_length=at_least,
            max_length=limit,
            suppress_sequences=self._spelt(forbidden) or None,
            include_prompt_in_result=False,
            return_scores=True,
            return_end_token=True,
        )
        texts = [self._read(one.sequences, one.scores) for one in found]
        return [[text.scored(length_penalty) for text in each] for each in texts]

    def stream_ids(self, prompt: Ids, *, limit: int, forbidden: Sequence[Ids] = ()) -> Iterator[tuple[int, float]]:
        """The likeliest next token and its log-probability, one after the other, until END or the limit."""
        engine = self._engine("Generator", 1, 1)
        (spelt,) = self._spelt([prompt])
        steps = engine.generate_tokens(
            spelt, max_length=limit, return_log_prob=True, suppress_sequences=self._spelt(forbidden) or None
        )
        for step in steps:
            if step.token_id == END:
                return
            yield step.token_id, step.log_prob

    def _engine(self, kind: str, texts: int, batches: int) -> Any:
        """Several batches: a worker for each thread. One batch: all threads on it, unless it is too small to share."""
        threads = torch.get_num_threads()
        workers = min(batches, threads)
        share = threads // workers if self.width >= WIDE or texts > workers else 1
        key = (kind, workers, share)
        if key not in self._running:
            make = getattr(library(), kind)
            self._running[key] = make(str(self.folder), inter_threads=workers, intra_threads=share)
        return self._running[key]

    def _spelt(self, texts: Sequence[Ids]) -> list[list[str]]:
        return [[self.target[token] for token in text] for text in texts]

    def _read(self, texts: list[list[str]], scores: list[float]) -> list[Found]:
        read = []
        for names, score in zip(texts, scores, strict=True):
            ended = names[-1:] == [self.end]
            read.append(Found([self.ids[name] for name in names[: len(names) - ended]], ended, score))
        return read

    def _with_tokens(
        self,
        engine: Any,
        sources: Sequence[Ids],
        found: Sequence[list[Found]],
        length_penalty: float,
        tokens: int,
        *,
        again: bool,
    ) -> list[list[Hypothesis]]:
        """With the log-probability of every token, from a pass that reads the texts instead of searching.

        `again`: rank by these, since the engine leaves a forced prefix out of its own scores.
        """
        spelt = [[self.source[token] for token in source] for source in sources]
        scored = engine.score_batch(
            [source for source, texts in zip(spelt, found, strict=True) for _ in texts],
            self._spelt([text.tokens for texts in found for text in texts]),
            max_batch_size=tokens,
            batch_type="tokens",
            max_input_length=0,
        )
        steps = iter(one.log_probs for one in scored)
        told = []
        for texts in found:
            each = [text.scored(length_penalty, next(steps), again=again) for text in texts]
            told.append(sorted(each, key=lambda text: -text.score))
        return told
