"""From prompts to continuations: the text a language model writes, and how likely it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from heedful.generation.decoding_config import DecodingConfig
from heedful.generation.incremental_detokenizer import detokenize_stream, until_stop_string
from heedful.generation.results import Continuation
from heedful.generation.search.hypotheses import Hypothesis
from heedful.generation.streaming import ProgressCallback, Search, hypothesis_words, ignore_progress
from heedful.text.special_tokens import UNKNOWN
from heedful.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Writer:
    """Prompts to continuations, by any way to search."""

    search: Search
    tokenizer: Tokenizer
    decoding: DecodingConfig
    reach: int | None
    keep_blank: bool = False
    """A blank prompt has no continuation, instead of being the beginning of a new document."""

    def continuations(self, window: Sequence[str], progress: ProgressCallback = ignore_progress) -> list[Continuation]:
        """What follows each prompt, and how likely that was."""
        blank = [self.keep_blank and not prompt.strip() for prompt in window]
        asked = [prompt for prompt, left in zip(window, blank, strict=True) if not left]
        read = self.tokenizer.encode(asked)
        found = self.search(read, progress=progress)
        answers = iter([self._best(*parts) for parts in zip(asked, read, found, strict=True)])
        return [
            Continuation(prompt, "", 0.0, 0.0) if left else next(answers)
            for prompt, left in zip(window, blank, strict=True)
        ]

    def _best(self, prompt: str, ids: list[int], found: list[Hypothesis]) -> Continuation:
        best, *alternatives = (self._alone(prompt, hypothesis) for hypothesis in found)
        return replace(best, alternatives=tuple(alternatives), warnings=tuple(prompt_warnings(ids, self.reach)))

    def _alone(self, prompt: str, found: Hypothesis) -> Continuation:
        text = "".join(until_stop_string(detokenize_stream(found.tokens, self.tokenizer, context=prompt), self.decoding.stop))
        words = hypothesis_words(found, self.tokenizer)[: len(text.split())]
        return Continuation(prompt, text, found.log_probability, found.score, words)


def prompt_warnings(ids: Sequence[int], reach: int | None) -> Iterator[str]:
    """What the model will not see of a prompt."""
    if reach is not None and len(ids) > reach:
        seen = max(1, reach // 2)
        yield f"the prompt has {len(ids):,} tokens and the model sees {reach:,}: it goes on from the last {seen:,}"
    if unknown := ids.count(UNKNOWN):
        yield f"{unknown:,} of the prompt's {len(ids):,} tokens are unknown to the model"
