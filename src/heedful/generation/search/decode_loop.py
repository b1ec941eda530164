"""Texts being written side by side: what stands there, what the model has read of it, and what may come next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from heedful.generation.search.logits_rules import FREE, Rules
from heedful.generation.search.stop_strings import BEGIN
from heedful.layers.kv_cache import State
from heedful.shapes import Bool, Float, Int
from heedful.text.special_tokens import END, NEVER_WRITTEN, START

SMALL = 512
"""Tokens × width below which a step is small."""
FREELY = -1
"""In place of a forced token: whatever the search likes."""
UNLIKELY = -1e4
"""A forced token costs at most this, even where the model thinks it impossible."""


@runtime_checkable
class Extending(Protocol):
    """Any model that decodes."""

    def extend(self, tokens: Tensor, state: State, lengths: Tensor | None = None, *, last: bool = False) -> Tensor: ...


class Scores(NamedTuple):
    """Of every token that may come next: what the model says, and what that is worth under the rules."""

    own: Float[Tensor, "rows vocabulary"]
    ranked: Float[Tensor, "rows vocabulary"]


class Draft:
    """Rows of text of one length. A search asks for `scores`, chooses, and says how to `go_on`.

    `opening` is what each row begins with (START, or a prompt); it is read, not written. `prefixes` are tokens each row
    is then made to write. A text that outgrows `window` is read afresh from the second half of what the window held:
    the model never sees a position it was not made for, and reads each token about twice.
    """

    @torch.inference_mode()
    def __init__(
        self,
        model: Any,
        state: State,
        *,
        opening: Int[Tensor, "rows tokens"] | None = None,
        prefixes: Sequence[Sequence[int]] | None = None,
        rules: Rules,
        window: int | None = None,
    ) -> None:
        self.model, self.state, self.rules, self.window = model, state, rules, window
        rows, device = len(state.lengths), state.lengths.device
        self.texts = torch.full((rows, 1), START, device=device) if opening is None else opening
        self.opening = self.texts.shape[1]
        self.first, self.read = 0, 0
        self.where = rules.begin(rows, device)
        self.log_probabilities = torch.zeros(rows, 0, device=device)
        self.forced = _forced(prefixes or [()] * rows, device)
        self._take_over(min(len(prefix) for prefix in prefixes) if prefixes else 0)

    @property
    def written(self) -> int:
        """Tokens of each row, its opening not counted."""
        return self.texts.shape[1] - self.opening

    @torch.inference_mode()
    def scores(self) -> Scores:
        """Read what is new; the log-probabilities of what may follow."""
        return self._scores()

    def _scores(self) -> Scores:
        own = log_softmax(self._read(last=True)[:, 0])
        ranked = self.rules(own, self.texts, self.written, self.where)
        if self.written < self.forced.shape[1]:
            ranked = _only(self.forced[:, self.written], ranked, own)
        return Scores(own, ranked)

    @torch.inference_mode()
    def likeliest(self) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
        """Of what may follow, the likeliest token of each row, and how likely it is."""
        at_once = getattr(self.model, "likeliest", None)
        if at_once is not None and self.rules == FREE and self.written >= self.forced.shape[1]:
            found: tuple[Tensor, Tensor] = at_once(self._unread(), self.state)
            return found
        own, ranked = self._scores()
        tokens = ranked.argmax(-1)
        return tokens, own.gather(1, tokens[:, None])[:, 0]

    def ends(self, tokens: Int[Tensor, "*some"], rows: Int[Tensor, "*some"] | None = None) -> Bool[Tensor, "*some"]:
        """Whether these rows (None: all, one token each) would end with these tokens."""
        if self.rules.patterns is None:
            return tokens == END
        where = self.where if rows is None else self.where[rows]
        return (tokens == END) | self.rules.stopped(self.rules.after(where, tokens))

    @torch.inference_mode()
    def go_on(
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
            self.texts, self.log_probabilities = self.texts[rows], self.log_probabilities[rows]
            self.where, self.forced = self.where[rows], self.forced[rows]
        self.where = self._place(self.where, tokens)
        self.texts = torch.cat([self.texts, tokens[:, None]], dim=1)
        self.log_probabilities = torch.cat([self.log_probabilities, log_probabilities[:, None]], dim=1)

    def _read(self, keep_back: int = 0, last: bool = False) -> Float[Tensor, "rows tokens vocabulary"]:
        """Logits after each token not read before, or after the last of them."""
        tokens = self._unread(keep_back)
        with fitting_threads(self.model, tokens.numel()):
            logits: Tensor = self.model.extend(tokens, self.state, last=last)
        return logits

    def _unread(self, keep_back: int = 0) -> Int[Tensor, "rows new"]:
        """The tokens not read before, which now are; those of the window's second half, if it was left."""
        end = self.texts.shape[1] - keep_back
        if self.window is not None and end - self.first > self.window:
            self.state = self.model.start(len(self.texts), room=self.window)
            self.first = self.read = end - max(1, self.window // 2)
        first, self.read = self.read, end
        return self.texts[:, first:end]

    def _place(self, where: Int[Tensor, " rows"], tokens: Int[Tensor, " rows"]) -> Int[Tensor, " rows"]:
        """Where rows stand among the patterns after these tokens; what is forced neither stops nor breaks anything."""
        where = self.rules.after(where, tokens)
        if self.rules.patterns is None or self.written >= self.forced.shape[1]:
            return where
        return where.masked_fill(self.rules.over(where) & (self.forced[:, self.written] != FREELY), BEGIN)

    def _take_over(self, common: int) -> None:
        """The first tokens that every row is made to write are read in one go, but for the last of them all."""
        if not common:
            return
        taken = self.forced[:, :common]
        for tokens in taken.unbind(1):
            self.where = self._place(self.where, tokens)
            self.texts = torch.cat([self.texts, tokens[:, None]], dim=1)
        own = log_softmax(self._read(keep_back=1)[:, self.opening - 1 :])
        self.log_probabilities = own.gather(2, taken[:, :, None])[:, :, 0].clamp(min=UNLIKELY)


@contextmanager
def fitting_threads(model: Any, tokens: int) -> Iterator[None]:
    """On a CPU, a step of a small model is over before a second thread has woken up."""
    threads = torch.get_num_threads()
    alone = threads > 1 and tokens * model.config.width < SMALL and not model.table.weight.is_cuda
    if alone:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if alone:
            torch.set_num_threads(threads)


def log_softmax(logits: Float[Tensor, "*axes vocabulary"]) -> Float[Tensor, "*axes vocabulary"]:
    """In float32 whatever the model's type, and never a token that cannot be text."""
    logits[..., : len(NEVER_WRITTEN)] = -torch.inf  # they have the first ids
    return torch.log_softmax(logits, dim=-1, dtype=torch.float32)


def _forced(prefixes: Sequence[Sequence[int]], device: torch.device) -> Int[Tensor, "rows tokens"]:
    longest = max((len(prefix) for prefix in prefixes), default=0)
    return torch.tensor([[*prefix, *[FREELY] * (longest - len(prefix))] for prefix in prefixes], device=device).long()


def _only(forced: Int[Tensor, " rows"], ranked: Tensor, own: Tensor) -> Tensor:
    """Where a token is forced, no other is allowed."""
    made = (forced != FREELY)[:, None]
    token = forced.clamp(min=0)[:, None]
    alone = torch.full_like(own, -torch.inf).scatter(1, token, own.gather(1, token).clamp(min=UNLIKELY))
    return torch.where(made, alone, ranked)
