"""A text in the queue of the continuous batch: its tokens, its search settings, and its hypotheses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event

from heedful.cancellation import REQUEST_IS_OVER
from heedful.generation.search.hypotheses import Hypothesis
from heedful.generation.search.settings import SearchSettings


class QueuedText:
    """A text to decode. The thread that submits it waits for `result`.

    `source`: the encoder's input tokens, if there is an encoder. `prompt`: the decoder's first tokens. `forced`: tokens
    that it must generate first. `window`: maximum number of positions in the decoder's cache. `on_token` is called with
    each token of the only hypothesis as soon as it is chosen, and finally with None.
    """

    def __init__(
        self,
        source: Sequence[int] | None,
        prompt: Sequence[int],
        settings: SearchSettings,
        limit: int,
        *,
        forced: Sequence[int] = (),
        window: int | None = None,
        on_token: Callable[[int | None], object] | None = None,
    ) -> None:
        self.source, self.prompt, self.forced = source, list(prompt), list(forced)
        self.settings, self.limit = settings, max(limit, len(self.forced) + 1)
        self.window = window
        self.on_token, self.tokens_sent = on_token, 0
        self.is_over = REQUEST_IS_OVER.get()
        self._results: dict[int, list[Hypothesis]] = {}
        self._error: BaseException | None = None
        self._done = Event()

    @property
    def positions(self) -> int:
        """Maximum number of positions that each of its rows may occupy."""
        decoded = len(self.prompt) + self.limit
        return max(len(self.source or ()) + 1, decoded if self.window is None else min(decoded, self.window))

    @property
    def memory(self) -> int:
        """Maximum number of positions that all of its rows together may occupy."""
        return self.settings.rows_per_text * self.positions

    @property
    def searches(self) -> int:
        """Independent searches: each sample is one."""
        return 1 if self.settings.sampling is None else self.settings.n_best

    def send(self, tokens: Sequence[int]) -> None:
        """Stream the tokens not sent yet."""
        if self.on_token is not None:
            for token in tokens[self.tokens_sent :]:
                self.on_token(token)
            self.tokens_sent = max(self.tokens_sent, len(tokens))

    def complete(self, number: int, hypotheses: list[Hypothesis]) -> None:
        """Store the hypotheses of one of its searches; the last search wakes up the waiting thread."""
        self._results[number] = hypotheses
        if len(self._results) == self.searches:
            self._finish()

    def fail(self, error: BaseException) -> None:
        """End the search with an error."""
        self._error = error
        self._finish()

    def _finish(self) -> None:
        self._done.set()
        if self.on_token is not None:
            self.on_token(None)

    def cancel(self) -> None:
        """Cancel the text: it leaves at the next decode step."""
        self.is_over = lambda: True

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def restart(self) -> None:
        """Discard partial results: the text is decoded again from its beginning."""
        self._results.clear()

    def result(self) -> list[Hypothesis]:
        """Wait for the hypotheses, best first; raises the error that ended the search."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return [hypothesis for number in sorted(self._results) for hypothesis in self._results[number]]
