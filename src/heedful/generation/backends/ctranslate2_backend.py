"""CTranslate2 behind the same calls: an engine in C++ for transformers on a CPU, with int8 if wished.

Scores are ours: log P / length^α, END counted. One thing differs with a beam: it stops as soon as `beam` texts have
ended, ours, unless in a hurry, goes on while a living one can still win. Greedy texts are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from heedful.data.batching import length_buckets
from heedful.errors import HeedfulError
from heedful.generation.backends.thread_pools import threads_per_text
from heedful.generation.search.hypotheses import Hypothesis
from heedful.generation.search.logits_rules import NO_RULES, LogitsRules
from heedful.generation.search.sampling import SamplingConfig
from heedful.generation.sequence_to_sequence import length_limit
from heedful.interop.ctranslate2_export import Quantisation, import_ctranslate2, pad_vocabulary, unsupported_setting, max_positions
from heedful.layers.taps import has_listeners
from heedful.models.model_config import TransformerConfig
from heedful.text.special_tokens import END

Ids = Sequence[int]
Progress = Callable[[int], object]


def unfit(
    model: Any, *, longest: int = 0, draw: SamplingConfig | None = None, rules: LogitsRules = NO_RULES, exact: bool = False
) -> str | None:
    """Why CTranslate2 cannot serve this model or request, whose longest text has so many tokens; None: it can."""
    try:
        import_ctranslate2()
    except HeedfulError as error:
        return str(error)
    config, device = model.config, model.table.weight.device
    if problem := unsupported_setting(config):
        return f"ctranslate2 cannot express {problem}"
    if device.type != "cpu":
        return f"ctranslate2 serves the CPU here, and the model is on {device}"
    if has_listeners(model):
        return "ctranslate2 has no taps, and some are listening"
    wishes = {
        "draw words by chance repeatably": draw is not None,
        "give every bit the same in any company": exact,
        "watch for stop texts and forbidden texts": rules.automaton is not None,
        "hold repetitions against a text": rules.repetition_penalty != 1.0,
    }
    for wish, asked in wishes.items():
        if asked:
            return f"ctranslate2 cannot {wish}"
    return too_long(config, longest)


def too_long(config: TransformerConfig, longest: int) -> str | None:
    """Why a text of so many tokens cannot be served; None: it can."""
    reach = config.max_length if config.family == "decoder" else max_positions(config)
    if reach is None or longest <= reach:
        return None
    return f"ctranslate2 has {reach} positions, and a text of {longest} tokens needs more"


class EngineHypothesis(NamedTuple):
    """A text as the engine gives it back; its score is already divided by length^α."""

    tokens: list[int]
    ended: bool
    score: float

    @property
    def length(self) -> int:
        return len(self.tokens) + self.ended

    def scored(self, length_penalty: float) -> Hypothesis:
        return Hypothesis(self.tokens, self.score * self.length**length_penalty, self.score, [math.nan] * self.length)

    def told(self, length_penalty: float, steps: Sequence[float]) -> Hypothesis:
        each = [*steps[: self.length]]
        return Hypothesis(self.tokens, sum(each), sum(each) / self.length**length_penalty, each)


class CTranslate2:
    """A converted model, ready to search. `names` are its vocabularies: source and target, or one for both."""

    def __init__(
        self,
        folder: Path,
        names: Sequence[Sequence[str]],
        config: TransformerConfig,
        quantisation: Quantisation = "float32",
    ) -> None:
        self.folder, self.config, self.quantisation = folder, config, quantisation
        self.source = pad_vocabulary(names[0], config.vocabulary)
        self.target = pad_vocabulary(names[-1], config.target_vocabulary or config.vocabulary)
        self.ids = {name: token for token, name in enumerate(self.target)}
        self.end = self.target[END]
        self._running: dict[tuple[str, int, int], Any] = {}

    def translate_ids(
        self,
        sources: Sequence[Ids],
        *,
        beam: int = 4,
        length_penalty: float = 1.0,
        n_best: int = 1,
        prefixes: Sequence[Ids] | None = None,
        at_most: Sequence[int] | None = None,
        rules: LogitsRules = NO_RULES,
        tokens: int = 8192,
        each_token: bool = True,
        progress: Progress = lambda _: None,
    ) -> list[list[Hypothesis]]:
        """`generation.translate.translate_ids` by this engine, for what `unfit` has nothing against.

        Without `each_token` the probabilities of single tokens are not worked out (they read NaN), which saves a pass.
        """
        if not sources:
            return []
        lengths = [len(source) for source in sources]
        reach = max_positions(self.config) or math.inf
        limits = [int(min(limit, reach)) for limit in at_most or length_limit(torch.tensor(lengths) + 1).tolist()]
        buckets = length_buckets([length + 1 for length in lengths], tokens // beam, longest_first=True)
        chunks = split_batches([bucket.tolist() for bucket in buckets])
        options: dict[str, Any] = {"beam_size": beam, "num_hypotheses": n_best, "length_penalty": length_penalty}
        options |= {"min_decoding_length": rules.min_length, "max_input_length": 0}
        options |= {"return_scores": True, "return_end_token": True, "asynchronous": True}
        found: dict[int, list[EngineHypothesis]] = {}

        def ask(engine: Any, rows: list[int]) -> list[Any]:
            texts = [[self.source[token] for token in sources[i]] for i in rows]
            forced = None if prefixes is None else self._spelt([prefixes[i] for i in rows])
            limit = max(limits[i] for i in rows)
            waiting: list[Any] = engine.translate_batch(texts, forced, max_decoding_length=limit, **options)
            return waiting

        with self._engine("Translator", len(chunks)) as engine:
            asked = [(rows, ask(engine, rows)) for rows in chunks]  # its workers begin at once
            for rows, waiting in asked:
                for i, one in zip(rows, waiting, strict=True):
                    answer = one.result()
                    if any(len(text) > limits[i] for text in answer.hypotheses):  # it had a longer neighbour's limit
                        answer = ask(engine, [i])[0].result()
                    found[i] = self._read(answer.hypotheses, answer.scores)
                progress(len(rows))
            texts = [found[i] for i in range(len(sources))]
            if each_token or prefixes is not None:
                return self._with_tokens(engine, sources, texts, length_penalty, tokens)
        return [[text.scored(length_penalty) for text in each] for each in texts]

    def generate_ids(
        self,
        prompts: Sequence[Ids],
        *,
        limit: int,
        beam: int = 1,
        length_penalty: float = 1.0,
        n_best: int = 1,
        rules: LogitsRules = NO_RULES,
    ) -> list[list[Hypothesis]]:
        """`generation.generate.generate_ids` by this engine: the likeliest continuations of each prompt.

        Prompts of one length are asked for together: of mixed ones it would give back parts of the longer prompts.
        """
        begun = [list(prompt) or [END] for prompt in prompts]
        alike = [[i for i, prompt in enumerate(begun) if len(prompt) == n] for n in sorted({*map(len, begun)})]
        alike = split_batches(alike)
        options: dict[str, Any] = {"beam_size": beam, "num_hypotheses": n_best, "length_penalty": length_penalty}
        options |= {"min_length": rules.min_length, "max_length": limit, "include_prompt_in_result": False}
        options |= {"return_scores": True, "return_end_token": True, "asynchronous": True}
        found: dict[int, list[EngineHypothesis]] = {}
        with self._engine("Generator", len(alike)) as engine:
            asked = [(rows, engine.generate_batch(self._spelt([begun[i] for i in rows]), **options)) for rows in alike]
            for rows, waiting in asked:
                for i, one in zip(rows, waiting, strict=True):
                    answer = one.result()
                    found[i] = self._read(answer.sequences, answer.scores)
        return [[text.scored(length_penalty) for text in found[i]] for i in range(len(begun))]

    def generate_tokens(self, prompt: Ids, *, limit: int) -> Iterator[int]:
        """The likeliest token after a prompt, then the next, each as soon as it is chosen."""
        (spelt,) = self._spelt([list(prompt) or [END]])
        with self._engine("Generator", 1) as engine:
            for step in engine.generate_tokens(spelt, max_length=limit):
                if step.token_id == END:
                    return
                yield step.token_id

    @contextmanager
    def _engine(self, kind: str, batches: int) -> Iterator[Any]:
        """A worker of one thread for each batch; to a single text of a large model go several threads.

        The library changes the number of threads for everybody in the process, and is slow when others' is higher.
        """
        threads = torch.get_num_threads()
        workers = max(1, min(batches, threads))
        each = threads_per_text(self.config, threads // workers, self.quantisation)
        key = (kind, workers, each)
        if key not in self._running:
            make = getattr(import_ctranslate2(), kind)
            self._running[key] = make(str(self.folder), inter_threads=workers, intra_threads=each)
        torch.set_num_threads(workers * each)
        try:
            yield self._running[key]
        finally:
            torch.set_num_threads(threads)

    def _spelt(self, texts: Sequence[Ids]) -> list[list[str]]:
        return [[self.target[token] for token in text] for text in texts]

    def _read(self, texts: list[list[str]], scores: list[float]) -> list[EngineHypothesis]:
        read = []
        for names, score in zip(texts, scores, strict=True):
            ended = names[-1:] == [self.end]
            read.append(EngineHypothesis([self.ids[name] for name in names[: len(names) - ended]], ended, score))
        return read

    def _with_tokens(
        self, engine: Any, sources: Sequence[Ids], found: Sequence[list[EngineHypothesis]], length_penalty: float, tokens: int
    ) -> list[list[Hypothesis]]:
        """With the log-probability of every token, from a pass that reads the texts instead of searching.

        They are ranked by these: the engine leaves a forced prefix out of its own scores.
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
        told = [[text.told(length_penalty, next(steps)) for text in texts] for texts in found]
        return [sorted(texts, key=lambda text: -text.score) for texts in told]


def split_batches(batches: list[list[int]]) -> list[list[int]]:
    """As many batches as there are threads, if they are fewer: two small ones, a thread each, take half as long as a
    large one that two threads work on together."""
    threads = torch.get_num_threads()
    if not batches or len(batches) >= threads:
        return batches
    parts = -(-threads // len(batches))
    return [batch[first::parts] for batch in batches for first in range(min(parts, len(batch)))]
