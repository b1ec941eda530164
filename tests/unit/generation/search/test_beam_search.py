"""Greedy and beam search: hypotheses do not depend on the batch, the prefix or early stopping."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.torch_backend import TorchBackend
from heedful.generation.search.beam_search import search
from heedful.generation.search.decode_loop import decode
from heedful.generation.search.decoding_batch import (
    SMALL_STEP,
    DecodingBatch,
    masked_log_softmax,
    small_step_threads,
)
from heedful.generation.search.hypotheses import FinishedHypotheses, Hypothesis
from heedful.generation.search.settings import SearchSettings
from heedful.text.special_tokens import END, NEVER_GENERATED, START

FAMILIES = ["laptop-translator", "recurrent-translator", "recurrent-bottleneck"]
Make = Callable[..., Any]
every_family = pytest.mark.parametrize("name", FAMILIES)


def _start(model: Any, rows: int = 5) -> tuple[Any, torch.Tensor]:
    """The state after encoding `rows` sources of different lengths, and a length limit for each row."""
    lengths = torch.tensor([7, 3, 5, 1, 6])[:rows]
    source = torch.randint(6, 9, (5, 7), generator=torch.Generator().manual_seed(1))[:rows]
    return model.start(source, lengths), torch.tensor([9, 4, 12, 2, 6])[:rows]


def _all(beam: int, **settings: Any) -> SearchSettings:
    return SearchSettings(beam=beam, n_best=beam, **settings)


def _teacher_forced(model: Any, row: int, tokens: list[int]) -> list[float]:
    """Log-probabilities of the tokens and of END, from one pass over all of them."""
    state, _ = _start(model)
    state.reorder(torch.tensor([row]))
    with torch.no_grad():
        scores = masked_log_softmax(model.extend(torch.tensor([[START, *tokens]]), state)[0])
    return [float(scores[i, token]) for i, token in enumerate([*tokens, END])]


def _tokens(results: list[list[Hypothesis]]) -> list[list[list[int]]]:
    return [[hypothesis.tokens for hypothesis in hypotheses] for hypotheses in results]


@every_family
def test_cached_greedy_search_equals_recomputing_every_step(name: str, make_model: Make) -> None:
    model = make_model(name)
    state, limits = _start(model)
    for row, hypothesis in enumerate(decode(DecodingBatch(model, state), limits)):
        tokens: list[int] = []
        for _ in range(int(limits[row])):
            single, _ = _start(model)
            single.reorder(torch.tensor([row]))
            with torch.no_grad():
                best = int(masked_log_softmax(model.extend(torch.tensor([[START, *tokens]]), single)[:, -1]).argmax())
            if best == END:
                break
            tokens.append(best)
        assert hypothesis.tokens == tokens


@every_family
def test_batched_beam_search_equals_single_rows(name: str, make_model: Make) -> None:
    model = make_model(name)
    state, limits = _start(model)
    batched = search(model, state, limits, _all(3))
    for row in range(5):
        single, _ = _start(model)
        single.reorder(torch.tensor([row]))
        assert _tokens(search(model, single, limits[row : row + 1], _all(3))) == _tokens(batched[row : row + 1])


@every_family
def test_batch_does_not_change_texts_and_exact_does_not_change_a_bit(name: str, make_model: Make) -> None:
    backend = TorchBackend(make_model(name, vocabulary=40))
    random = torch.randint(6, 40, (64, 9), generator=torch.Generator().manual_seed(2)).tolist()
    sources = [tokens[: 1 + number % 9] for number, tokens in enumerate(random)]
    settings = SearchSettings(beam=2, n_best=2, max_length=3)
    single = [backend.translate(SearchRequest([source], settings))[0] for source in sources]
    assert _tokens(backend.translate(SearchRequest(sources, settings))) == _tokens(single)
    sample = slice(0, 64, 4)
    exact = SearchSettings(beam=2, n_best=2, max_length=3, exact=True)
    assert backend.translate(SearchRequest(sources[sample], exact)) == single[sample]


@every_family
def test_log_probabilities_equal_teacher_forcing(name: str, make_model: Make) -> None:
    model = make_model(name)
    state, limits = _start(model)
    for row, hypotheses in enumerate(search(model, state, limits, _all(3))):
        for hypothesis in hypotheses:
            expected = _teacher_forced(model, row, hypothesis.tokens)[: len(hypothesis.tokens) + hypothesis.ended]
            assert hypothesis.token_log_probabilities == pytest.approx(expected, abs=1e-4)
            assert hypothesis.log_probability == pytest.approx(sum(expected), abs=1e-4)
            assert hypothesis.ended or len(hypothesis.tokens) == int(limits[row])


def test_wide_beam_equals_exhaustive_search(make_model: Make) -> None:
    """Compare with all texts over a small vocabulary, ended or cut off at 4 tokens."""
    model, limit = make_model("laptop-translator", vocabulary=9), 4
    words = [token for token in range(9) if token not in (*NEVER_GENERATED, END)]
    texts = [text for size in range(limit + 1) for text in itertools.product(words, repeat=size)]
    state, _ = _start(model, rows=1)
    state.reorder(torch.zeros(len(texts), dtype=torch.long))
    tokens = torch.tensor([[START, *text, *[END] * (limit + 1 - len(text))] for text in texts])
    with torch.no_grad():
        steps = masked_log_softmax(model.extend(tokens[:, :-1], state)).gather(2, tokens[:, 1:, None])[:, :, 0]
    for length_penalty in (0.0, 0.6, 1.0, 2.0):
        lengths = [min(limit, len(text) + 1) for text in texts]
        totals = [float(row[:length].sum()) for row, length in zip(steps, lengths, strict=True)]
        scores = [total / length**length_penalty for total, length in zip(totals, lengths, strict=True)]
        best = sorted(range(len(texts)), key=lambda i: -scores[i])[:20]
        state, _ = _start(model, rows=1)
        settings = SearchSettings(beam=200, length_penalty=length_penalty, n_best=20)
        (hypotheses,) = search(model, state, torch.tensor([limit]), settings)
        assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx([scores[i] for i in best], abs=1e-4)
        assert [tuple(hypothesis.tokens) for hypothesis in hypotheses[:5]] == [texts[i] for i in best[:5]]


def test_stopping_when_nothing_can_win_does_not_change_results(
    make_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    is_done = FinishedHypotheses.is_done

    def counted(self: FinishedHypotheses, length: int, best: float) -> bool:
        steps.append(length)
        return is_done(self, length, best)

    searches = list(itertools.product(range(3), ((0.0, 1), (1.0, 1), (1.0, 3), (2.0, 2))))
    for seed, (length_penalty, n_best) in searches:
        model = make_model("laptop-translator", vocabulary=9, seed=seed)
        settings = SearchSettings(beam=3, length_penalty=length_penalty, n_best=n_best)
        results = []
        for rule in (counted, lambda self, length, best: length >= self.limit):
            monkeypatch.setattr(FinishedHypotheses, "is_done", rule)
            state, _ = _start(model)
            results.append(_tokens(search(model, state, torch.full((5,), 12), settings)))
        assert results[0] == results[1]
    assert len(steps) < 0.8 * len(searches) * 5 * 12  # it stops before the limit


@every_family
def test_beam_of_one_is_greedy(name: str, make_model: Make) -> None:
    model = make_model(name)
    state, limits = _start(model)
    greedy_state, _ = _start(model)
    results = search(model, state, limits, SearchSettings(beam=1))
    assert [hypotheses[0] for hypotheses in results] == decode(DecodingBatch(model, greedy_state), limits)


@pytest.mark.parametrize("beam", [1, 3])
@every_family
def test_forced_prefix_comes_first_and_is_scored(name: str, beam: int, make_model: Make) -> None:
    """Prefixes of different lengths in one batch, one empty, one longer than its limit."""
    model = make_model(name)
    state, limits = _start(model)
    prefixes = [[6, 7], [], [8], [7, 7, 7, 7], [6]]
    results = search(model, state, limits, _all(beam), prefixes=prefixes)
    for row, (hypotheses, prefix) in enumerate(zip(results, prefixes, strict=True)):
        for hypothesis in hypotheses:
            assert hypothesis.tokens[: len(prefix)] == prefix
            expected = _teacher_forced(model, row, hypothesis.tokens)[: len(hypothesis.tokens) + hypothesis.ended]
            assert hypothesis.token_log_probabilities == pytest.approx(expected, abs=1e-4)


@every_family
def test_forcing_the_greedy_prefix_does_not_change_the_text(name: str, make_model: Make) -> None:
    model = make_model(name)
    state, _ = _start(model)
    limits = torch.full((5,), 9)
    free = decode(DecodingBatch(model, state), limits)
    for size in (1, 2):
        state, _ = _start(model)
        forced = decode(DecodingBatch(model, state, prefixes=[hypothesis.tokens[:size] for hypothesis in free]), limits)
        assert [hypothesis.tokens for hypothesis in forced] == [hypothesis.tokens for hypothesis in free]


def test_special_tokens_are_never_generated(make_model: Make) -> None:
    model = make_model("laptop-translator")
    state, limits = _start(model)
    for hypotheses in search(model, state, limits, _all(4)):
        assert not {token for hypothesis in hypotheses for token in hypothesis.tokens} & {*NEVER_GENERATED, END}


def test_length_limits_hold_for_each_row(make_model: Make) -> None:
    model = make_model("recurrent-translator")
    state, limits = _start(model)
    for hypotheses, limit in zip(search(model, state, limits, _all(2)), limits, strict=True):
        assert all(len(hypothesis.tokens) <= limit for hypothesis in hypotheses)


def test_translation_ends_at_the_last_learned_position(make_model: Make) -> None:
    model = make_model("laptop-translator", positions="learned", max_length=12)
    for hypotheses in TorchBackend(model).translate(SearchRequest([[6, 7, 8] * 3, [6]], SearchSettings(beam=2))):
        assert all(len(hypothesis.tokens) <= 12 for hypothesis in hypotheses)


def test_small_step_uses_one_thread_and_restores_the_others(make_model: Make) -> None:
    model = make_model("laptop-translator")
    torch.set_num_threads(2)
    try:
        for tokens, threads in ((1, 1), (SMALL_STEP, 2)):
            with small_step_threads(model, tokens):
                assert torch.get_num_threads() == threads
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("name", [*FAMILIES, "laptop-writer", "recurrent-writer"])
@torch.no_grad()
def test_last_logits_equal_the_last_of_all_logits(make_model: Make, name: str) -> None:
    model = make_model(name)

    def state() -> Any:
        return _start(model)[0] if "writer" not in name else model.start(5)

    tokens = torch.randint(6, 9, (5, 4))
    last = model.extend(tokens, state(), last=True)
    assert last.shape[1] == 1
    torch.testing.assert_close(last[:, 0], model.extend(tokens, state())[:, -1])
