"""Texts being written side by side: what stands there, what the model has read of it, and what may come next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from heedful.generation.search.logits_rules import NO_RULES, LogitsRules
from heedful.generation.search.stop_strings import START_STATE
from heedful.layers.kv_cache import DecoderState
from heedful.shapes import Bool, Float, Int
from heedful.text.special_tokens import END, NEVER_GENERATED, START

SMALL_STEP = 512
"""Tokens × width below which a step is small."""
NOT_FORCED = -1
"""In place of a forced token: whatever the search likes."""
MIN_FORCED_LOG_PROBABILITY = -1e4
"""A forced token costs at most this, even where the model thinks it impossible."""


@runtime_checkable
class IncrementalModel(Protocol):
    """Any model that decodes."""

    def extend(self, tokens: Tensor, state: DecoderState, lengths: Tensor | None = None, *, last: bool = False) -> Tensor: ...


class Scores(NamedTuple):
    """Of every token that may come next: what the model says, and what that is worth under the rules."""

    own: Float[Tensor, "rows vocabulary"]
    ranked: Float[Tensor, "rows vocabulary"]


class PartialHypotheses:
    """Rows of text of one length. A search asks for `scores`, chooses, and says how to `go_on`.

    `opening` is what each row begins with (START, or a prompt); it is read, not written. `prefixes` are tokens each row
    is then made to write. A text that outgrows `window` is read afresh from the second half of what the window held:
    the model never sees a position it was not made for, and reads each token about twice.
    """

    @torch.inference_mode()
    def __init__(
        self,
        model: Any,
        state: DecoderState,
        *,
        opening: Int[Tensor, "rows tokens"] | None = None,
        prefixes: Sequence[Sequence[int]] | None = None,
        rules: LogitsRules,
        window: int | None = None,
    ) -> None:
        self.model, self.state, self.rules, self.window = model, state, rules, window
        rows, device = len(state.lengths), state.lengths.device
        self.tokens = torch.full((rows, 1), START, device=device) if opening is None else opening
        self.opening = self.tokens.shape[1]
        self.first, self.read = 0, 0
        self.automaton_states = rules.initial_states(rows, device)
        self.log_probabilities = torch.zeros(rows, 0, device=device)
        self.forced = _forced(prefixes or [()] * rows, device)
        self._take_over(min(len(prefix) for prefix in prefixes) if prefixes else 0)

    @property
    def written(self) -> int:
        """Tokens of each row, its opening not counted."""
        return self.tokens.shape[1] - self.opening

    @torch.inference_mode()
    def scores(self) -> Scores:
        """Read what is new; the log-probabilities of what may follow."""
        return self._scores()

    def _scores(self) -> Scores:
        own = masked_log_softmax(self._read(last=True)[:, 0])
        ranked = self.rules(own, self.tokens, self.written, self.automaton_states)
        if self.written < self.forced.shape[1]:
            ranked = _only(self.forced[:, self.written], ranked, own)
        return Scores(own, ranked)

    @torch.inference_mode()
    def argmax_tokens(self) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
        """Of what may follow, the likeliest token of each row, and how likely it is."""
        at_once = getattr(self.model, "likeliest", None)
        if at_once is not None and self.rules == NO_RULES and self.written >= self.forced.shape[1]:
            found: tuple[Tensor, Tensor] = at_once(self._unread(), self.state)
            return found
        own, ranked = self._scores()
        tokens = ranked.argmax(-1)
        return tokens, own.gather(1, tokens[:, None])[:, 0]

    def ends(self, tokens: Int[Tensor, "*some"], rows: Int[Tensor, "*some"] | None = None) -> Bool[Tensor, "*some"]:
        """Whether these rows (None: all, one token each) would end with these tokens."""
        if self.rules.automaton is None:
            return tokens == END
        where = self.automaton_states if rows is None else self.automaton_states[rows]
        return (tokens == END) | self.rules.is_stopped(self.rules.next_states(where, tokens))

    @torch.inference_mode()
    def append(
        self,
        rows: Int[Tensor, " kept"] | None,
        tokens: Int[Tensor, " kept"],
        log_probabilities: Float[Tensor, " kept"],
        together: int = 1,
    ) -> None:
        """Keep these rows, in this order (None: all, as they are), each with one more token.

        Each `together` of them belong to one text.
        """
        if rows is not None:
            self.state.reorder(rows, together)
            self.tokens, self.log_probabilities = self.tokens[rows], self.log_probabilities[rows]
            self.automaton_states, self.forced = self.automaton_states[rows], self.forced[rows]
        self.automaton_states = self._place(self.automaton_states, tokens)
        self.tokens = torch.cat([self.tokens, tokens[:, None]], dim=1)
        self.log_probabilities = torch.cat([self.log_probabilities, log_probabilities[:, None]], dim=1)

    def _read(self, keep_back: int = 0, last: bool = False) -> Float[Tensor, "rows tokens vocabulary"]:
        """Logits after each token not read before, or after the last of them."""
        tokens = self._unread(keep_back)
        with small_step_threads(self.model, tokens.numel()):
            logits: Tensor = self.model.extend(tokens, self.state, last=last)
        return logits

    def _unread(self, keep_back: int = 0) -> Int[Tensor, "rows new"]:
        """The tokens not read before, which now are; those of the window's second half, if it was left."""
        end = self.tokens.shape[1] - keep_back
        if self.window is not None and end - self.first > self.window:
            self.state = self.model.start(len(self.tokens), capacity=self.window)
            self.first = self.read = end - max(1, self.window // 2)
        first, self.read = self.read, end
        return self.tokens[:, first:end]

    def _place(self, where: Int[Tensor, " rows"], tokens: Int[Tensor, " rows"]) -> Int[Tensor, " rows"]:
        """Where rows stand among the patterns after these tokens; what is forced neither stops nor breaks anything."""
        where = self.rules.next_states(where, tokens)
        if self.rules.automaton is None or self.written >= self.forced.shape[1]:
            return where
        return where.masked_fill(self.rules.is_matched(where) & (self.forced[:, self.written] != NOT_FORCED), START_STATE)

    def _take_over(self, common: int) -> None:
        """The first tokens that every row is made to write are read in one go, but for the last of them all."""
        if not common:
            return
        taken = self.forced[:, :common]
        for tokens in taken.unbind(1):
            self.automaton_states = self._place(self.automaton_states, tokens)
            self.tokens = torch.cat([self.tokens, tokens[:, None]], dim=1)
        own = masked_log_softmax(self._read(keep_back=1)[:, self.opening - 1 :])
        self.log_probabilities = own.gather(2, taken[:, :, None])[:, :, 0].clamp(min=MIN_FORCED_LOG_PROBABILITY)


@contextmanager
def small_step_threads(model: Any, tokens: int) -> Iterator[None]:
    """On a CPU, a step of a small model is over before a second thread has woken up."""
    threads = torch.get_num_threads()
    alone = threads > 1 and tokens * model.config.width < SMALL_STEP and not model.table.weight.is_cuda
    if alone:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if alone:
            torch.set_num_threads(threads)


def masked_log_softmax(logits: Float[Tensor, "*axes vocabulary"]) -> Float[Tensor, "*axes vocabulary"]:
    """In float32 whatever the model's type, and never a token that cannot be text."""
    logits[..., : len(NEVER_GENERATED)] = -torch.inf  # they have the first ids
    return torch.log_softmax(logits, dim=-1, dtype=torch.float32)


def _forced(prefixes: Sequence[Sequence[int]], device: torch.device) -> Int[Tensor, "rows tokens"]:
    longest = max((len(prefix) for prefix in prefixes), default=0)
    return torch.tensor([[*prefix, *[NOT_FORCED] * (longest - len(prefix))] for prefix in prefixes], device=device).long()


def _only(forced: Int[Tensor, " rows"], ranked: Tensor, own: Tensor) -> Tensor:
    """Where a token is forced, no other is allowed."""
    made = (forced != NOT_FORCED)[:, None]
    token = forced.clamp(min=0)[:, None]
    alone = torch.full_like(own, -torch.inf).scatter(1, token, own.gather(1, token).clamp(min=MIN_FORCED_LOG_PROBABILITY))
    return torch.where(made, alone, ranked)
