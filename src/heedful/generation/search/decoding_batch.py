"""A batch of partial hypotheses of equal length, with the model's KV cache and the scores of the next token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.cancellation import raise_if_cancelled
from heedful.generation.search.logits_rules import NO_RULES, LogitsRules
from heedful.generation.search.stop_strings import FORBIDDEN, START_STATE, STOPPED
from heedful.layers.kv_cache import DecoderState, KVCache
from heedful.models.protocols import DecoderModel
from heedful.shapes import Bool, Float, Int
from heedful.text.special_tokens import END, NEVER_GENERATED, START

SMALL_STEP = 512
"""Tokens × width below which a CPU step runs on one thread."""
NOT_FORCED = -1
"""Marks positions without a forced token, where the search may choose."""
MIN_FORCED_LOG_PROBABILITY = -1e4
"""Lower bound for a forced token's log-probability, so that a sum with an impossible one stays finite."""


class NextTokenScores(NamedTuple):
    """Scores of every possible next token: the model's log-probabilities, and the same after the logits rules."""

    log_probabilities: Float[Tensor, "rows vocabulary"]
    ranked: Float[Tensor, "rows vocabulary"]


class DecodingBatch:
    """Partial hypotheses, one per row. A search reads `scores`, chooses tokens and calls `append`.

    `prompt` is what each row begins with (START, or a prompt); it is read and not part of the hypothesis. `prefixes`
    are tokens that each row is then forced to generate. `copies` repeats each row, for several samples of one text. A
    row that outgrows `window` is prefilled again from the second half of the window: the model never sees a position it
    was not trained for, and reads each token about twice.
    """

    @torch.inference_mode()
    def __init__(
        self,
        model: DecoderModel,
        state: DecoderState,
        *,
        prompt: Int[Tensor, "texts tokens"] | None = None,
        prefixes: Sequence[Sequence[int]] | None = None,
        rules: LogitsRules = NO_RULES,
        window: int | None = None,
        copies: int = 1,
    ) -> None:
        if copies > 1:
            indices = torch.arange(len(state.lengths), device=state.lengths.device).repeat_interleave(copies)
            state.reorder(indices, copies)
            prompt = None if prompt is None else prompt[indices]
            prefixes = None if prefixes is None else [prefix for prefix in prefixes for _ in range(copies)]
        self.model, self.state, self.rules, self.window = model, state, rules, window
        rows, device = len(state.lengths), state.lengths.device
        self.tokens = torch.full((rows, 1), START, device=device) if prompt is None else prompt
        self.prompt_length = self.tokens.shape[1]
        self.window_start, self.tokens_read = 0, 0
        self.automaton_states = torch.full((rows,), START_STATE, device=device)
        self.log_probabilities = torch.zeros(rows, 0, device=device)
        self.forced = _forced_tokens(prefixes or [()] * rows, device)
        self._prefill_forced(min(len(prefix) for prefix in prefixes) if prefixes else 0)

    @property
    def generated(self) -> int:
        """Tokens generated in each row, the prompt not counted."""
        return self.tokens.shape[1] - self.prompt_length

    def raise_limits(self, limits: Int[Tensor, " rows"]) -> Int[Tensor, " rows"]:
        """Length limits that leave room for the forced prefix and one more token."""
        return torch.maximum(limits, (self.forced != NOT_FORCED).sum(1) + 1)

    @torch.inference_mode()
    def score_next_tokens(self) -> NextTokenScores:
        """Run the model on the unread tokens and score every next token."""
        return self._scores()

    def _scores(self) -> NextTokenScores:
        log_probabilities = masked_log_softmax(self._extend(last=True)[:, 0])
        ranked = self.rules(log_probabilities, self.tokens, self.generated, self.automaton_states)
        if self.generated < self.forced.shape[1]:
            ranked = _allow_only_forced(self.forced[:, self.generated], ranked, log_probabilities)
        return NextTokenScores(log_probabilities, ranked)

    @torch.inference_mode()
    def argmax_tokens(self) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
        """Each row's best next token and its log-probability; inside the CUDA graph if the model can (`argmax`)."""
        fused = getattr(self.model, "argmax", None)
        if fused is not None and self.rules == NO_RULES and self.generated >= self.forced.shape[1]:
            result: tuple[Tensor, Tensor] = fused(self._unread(), self.state)
            return result
        log_probabilities, ranked = self._scores()
        tokens = ranked.argmax(-1)
        return tokens, log_probabilities.gather(1, tokens[:, None])[:, 0]

    def ends(self, tokens: Int[Tensor, "*some"], rows: Int[Tensor, "*some"] | None = None) -> Bool[Tensor, "*some"]:
        """Whether appending these tokens to these rows (None: one token per row) ends the hypothesis."""
        if self.rules.automaton is None:
            return tokens == END
        states = self.automaton_states if rows is None else self.automaton_states[rows]
        return (tokens == END) | (self.rules.next_states(states, tokens) == STOPPED)

    @torch.inference_mode()
    def append(
        self,
        rows: Int[Tensor, " kept"] | None,
        tokens: Int[Tensor, " kept"],
        log_probabilities: Float[Tensor, " kept"],
        rows_per_source: int = 1,
    ) -> None:
        """Keep these rows in this order (None: all, unchanged), each with one more token."""
        raise_if_cancelled()
        if rows is not None:
            self.state.reorder(rows, rows_per_source)
            self.tokens, self.log_probabilities = self.tokens[rows], self.log_probabilities[rows]
            self.automaton_states, self.forced = self.automaton_states[rows], self.forced[rows]
        self.automaton_states = self._next_states(tokens)
        self.tokens = torch.cat([self.tokens, tokens[:, None]], dim=1)
        self.log_probabilities = torch.cat([self.log_probabilities, log_probabilities[:, None]], dim=1)

    def _extend(self, hold_back: int = 0, last: bool = False) -> Float[Tensor, "rows tokens vocabulary"]:
        """Logits after each unread token but the last `hold_back`, or only after the last of them."""
        tokens = self._unread(hold_back)
        with small_step_threads(self.model, tokens.numel()):
            return self.model.extend(tokens, self.state, last=last)

    def _unread(self, hold_back: int = 0) -> Int[Tensor, "rows new"]:
        """The tokens that the KV cache does not hold yet; past the window, its second half for a new cache."""
        end = self.tokens.shape[1] - hold_back
        if getattr(self.model, "recomputes", False) and self.tokens_read:
            self._forget_states()
        if self.window is not None and end - self.window_start > self.window:
            before: Any = self.state
            self.state = state = self.model.start(len(self.tokens), capacity=self.window)
            state.texts = getattr(before, "texts", None)
            self.window_start = self.tokens_read = end - max(1, self.window // 2)
        first, self.tokens_read = self.tokens_read, end
        return self.tokens[:, first:end]

    def _forget_states(self) -> None:
        """Read all tokens again at the next step, in a model whose states depend on later tokens."""
        assert isinstance(self.state, KVCache), "only a transformer's states depend on later tokens"
        self.state.rewind()
        self.tokens_read = self.window_start

    def _next_states(self, tokens: Int[Tensor, " rows"]) -> Int[Tensor, " rows"]:
        """Automaton states after these tokens; forced tokens neither stop a text nor count as forbidden."""
        states = self.rules.next_states(self.automaton_states, tokens)
        if self.rules.automaton is None or self.generated >= self.forced.shape[1]:
            return states
        matched = (states == STOPPED) | (states == FORBIDDEN)
        return states.masked_fill(matched & (self.forced[:, self.generated] != NOT_FORCED), START_STATE)

    def _prefill_forced(self, count: int) -> None:
        """Append the first `count` tokens, forced in every row, and read all but the last in one pass."""
        if not count:
            return
        forced = self.forced[:, :count]
        for tokens in forced.unbind(1):
            self.automaton_states = self._next_states(tokens)
            self.tokens = torch.cat([self.tokens, tokens[:, None]], dim=1)
        scores = masked_log_softmax(self._extend(hold_back=1)[:, self.prompt_length - 1 :])
        self.log_probabilities = scores.gather(2, forced[:, :, None])[:, :, 0].clamp(min=MIN_FORCED_LOG_PROBABILITY)


@contextmanager
def small_step_threads(model: DecoderModel, tokens: int) -> Iterator[None]:
    """Run a small CPU step on one thread: waking a second one would take longer than the work it saves."""
    threads = torch.get_num_threads()
    single = threads > 1 and tokens * model.config.width < SMALL_STEP and model.device.type != "cuda"
    if single:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if single:
            torch.set_num_threads(threads)


def masked_log_softmax(logits: Float[Tensor, "*axes vocabulary"]) -> Float[Tensor, "*axes vocabulary"]:
    """Log-softmax in float32 whatever the model's type, with −inf for special tokens that are never generated."""
    logits[..., : len(NEVER_GENERATED)] = -torch.inf  # they have the first ids
    return torch.log_softmax(logits, dim=-1, dtype=torch.float32)


def _forced_tokens(prefixes: Sequence[Sequence[int]], device: torch.device) -> Int[Tensor, "rows tokens"]:
    longest = max((len(prefix) for prefix in prefixes), default=0)
    padded = [[*prefix, *[NOT_FORCED] * (longest - len(prefix))] for prefix in prefixes]
    return torch.tensor(padded, device=device).long()


def _allow_only_forced(forced: Int[Tensor, " rows"], ranked: Tensor, log_probabilities: Tensor) -> Tensor:
    """Set the scores of all other tokens to −inf in rows with a forced token."""
    token = forced.clamp(min=0)[:, None]
    score = log_probabilities.gather(1, token).clamp(min=MIN_FORCED_LOG_PROBABILITY)
    only = torch.full_like(log_probabilities, -torch.inf).scatter(1, token, score)
    return torch.where((forced != NOT_FORCED)[:, None], only, ranked)
