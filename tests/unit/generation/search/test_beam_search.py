"""Search: the same texts however they are found."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from heedful.generation.search.beam_search import beam_search, greedy
from heedful.generation.search.decode_loop import SMALL_STEP, small_step_threads, masked_log_softmax
from heedful.generation.search.hypotheses import Hypothesis, FinishedHypotheses
from heedful.generation.sequence_to_sequence import translate_ids
from heedful.text.special_tokens import END, NEVER_GENERATED, START

FAMILIES = ["laptop-translator", "recurrent-translator", "recurrent-bottleneck"]
Make = Callable[..., Any]
every_family = pytest.mark.parametrize("name", FAMILIES)


def _start(model: Any, rows: int = 5) -> tuple[Any, torch.Tensor]:
    lengths = torch.tensor([7, 3, 5, 1, 6])[:rows]
    source = torch.randint(6, 9, (5, 7), generator=torch.Generator().manual_seed(1))[:rows]
    return model.start(source, lengths), torch.tensor([9, 4, 12, 2, 6])[:rows]


def _likely(model: Any, row: int, text: list[int]) -> list[float]:
    """Log-probabilities of a text's tokens and of END, by teacher forcing: the whole text at once."""
    state, _ = _start(model)
    state.reorder(torch.tensor([row]))
    with torch.no_grad():
        scores = masked_log_softmax(model.extend(torch.tensor([[START, *text]]), state)[0])
    return [float(scores[i, token]) for i, token in enumerate([*text, END])]


def _same(found: list[list[Hypothesis]], others: list[list[Hypothesis]]) -> bool:
    return [[text.tokens for text in texts] for texts in found] == [[text.tokens for text in texts] for texts in others]


@every_family
def test_greedy_takes_the_likeliest_token_at_every_step(name: str, make_model: Make) -> None:
    """Which also says that what is cached is what would be computed afresh."""
    model = make_model(name)
    state, limits = _start(model)
    for row, found in enumerate(greedy(model, state, limits)):
        text: list[int] = []
        for _ in range(int(limits[row])):
            alone, _ = _start(model)
            alone.reorder(torch.tensor([row]))
            with torch.no_grad():
                best = int(masked_log_softmax(model.extend(torch.tensor([[START, *text]]), alone)[:, -1]).argmax())
            if best == END:
                break
            text.append(best)
        assert found.tokens == text


@every_family
def test_a_batch_finds_what_each_row_finds_alone(name: str, make_model: Make) -> None:
    model = make_model(name)
    state, limits = _start(model)
    together = beam_search(model, state, limits, beam=3)
    for row in range(5):
        alone, _ = _start(model)
        alone.reorder(torch.tensor([row]))
        assert _same(beam_search(model, alone, limits[row : row + 1], beam=3), together[row : row + 1])


@every_family
def test_sixty_four_texts_are_translated_as_each_alone_and_exactly_so_if_asked(name: str, make_model: Make) -> None:
    model = make_model(name, vocabulary=40)
    drawn = torch.randint(6, 40, (64, 9), generator=torch.Generator().manual_seed(2)).tolist()
    sources = [text[: 1 + number % 9] for number, text in enumerate(drawn)]
    how: dict[str, Any] = {"beam": 2, "n_best": 2, "at_most": 3}
    alone = [translate_ids(model, [source], **how)[0] for source in sources]
    assert _same(translate_ids(model, sources, **how), alone)
    some = slice(0, 64, 4)
    assert translate_ids(model, sources[some], exact=True, **how) == alone[some]  # every probability, to the bit


@every_family
def test_log_probabilities_are_those_of_teacher_forcing(name: str, make_model: Make) -> None:
    model = make_model(name)
    state, limits = _start(model)
    for row, found in enumerate(beam_search(model, state, limits, beam=3)):
        for text in found:
            expected = _likely(model, row, text.tokens)[: len(text.tokens) + text.ended]
            assert text.token_log_probabilities == pytest.approx(expected, abs=1e-4)
            assert text.log_probability == pytest.approx(sum(expected), abs=1e-4)
            assert text.ended or len(text.tokens) == int(limits[row])


def test_a_wide_beam_finds_the_best_of_all_texts_in_order(make_model: Make) -> None:
    """Against every text there is, ended or cut off at 4 tokens, over a small vocabulary."""
    model, limit = make_model("laptop-translator", vocabulary=9), 4
    words = [token for token in range(9) if token not in (*NEVER_GENERATED, END)]
    texts = [text for size in range(limit + 1) for text in itertools.product(words, repeat=size)]
    state, _ = _start(model, rows=1)
    state.reorder(torch.zeros(len(texts), dtype=torch.long))
    read = torch.tensor([[START, *text, *[END] * (limit + 1 - len(text))] for text in texts])
    with torch.no_grad():
        likely = masked_log_softmax(model.extend(read[:, :-1], state)).gather(2, read[:, 1:, None])[:, :, 0]
    for length_penalty in (0.0, 0.6, 1.0, 2.0):
        lengths = [min(limit, len(text) + 1) for text in texts]
        totals = [float(row[:length].sum()) for row, length in zip(likely, lengths, strict=True)]
        scores = [total / length**length_penalty for total, length in zip(totals, lengths, strict=True)]
        best = sorted(range(len(texts)), key=lambda i: -scores[i])[:20]
        state, _ = _start(model, rows=1)
        (found,) = beam_search(model, state, torch.tensor([limit]), beam=200, length_penalty=length_penalty, n_best=20)
        assert [text.score for text in found] == pytest.approx([scores[i] for i in best], abs=1e-4)
        assert [tuple(text.tokens) for text in found[:5]] == [texts[i] for i in best[:5]]


def test_stopping_early_never_changes_what_is_found(make_model: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it does stop early."""
    steps = []
    settled = FinishedHypotheses.settled

    def counted(self: FinishedHypotheses, length: int, best: float) -> bool:
        steps.append(length)
        return settled(self, length, best)

    searches = list(itertools.product(range(3), ((0.0, 1), (1.0, 1), (1.0, 3), (2.0, 2))))
    for seed, (length_penalty, n_best) in searches:
        model = make_model("laptop-translator", vocabulary=9, seed=seed)
        results = []
        for rule in (counted, lambda self, length, best: length >= self.limit):
            monkeypatch.setattr(FinishedHypotheses, "settled", rule)
            state, _ = _start(model)
            limits = torch.full((5,), 12)
            results.append(beam_search(model, state, limits, beam=3, length_penalty=length_penalty, n_best=n_best))
        assert _same(*results)
    assert len(steps) < 0.8 * len(searches) * 5 * 12


@every_family
def test_beam_of_one_is_greedy(name: str, make_model: Make) -> None:
    model = make_model(name)
    state, limits = _start(model)
    other, _ = _start(model)
    assert [texts[0] for texts in beam_search(model, state, limits, beam=1)] == greedy(model, other, limits)


@pytest.mark.parametrize("beam", [1, 3])
@every_family
def test_a_forced_prefix_comes_first_and_counts(name: str, beam: int, make_model: Make) -> None:
    """Prefixes of different lengths in one batch, one empty, one longer than its limit."""
    model = make_model(name)
    state, limits = _start(model)
    prefixes = [[6, 7], [], [8], [7, 7, 7, 7], [6]]
    found = beam_search(model, state, limits, beam=beam, prefixes=prefixes)
    for row, (texts, prefix) in enumerate(zip(found, prefixes, strict=True)):
        for text in texts:
            assert text.tokens[: len(prefix)] == prefix
            expected = _likely(model, row, text.tokens)[: len(text.tokens) + text.ended]
            assert text.token_log_probabilities == pytest.approx(expected, abs=1e-4)


@every_family
def test_a_prefix_the_search_would_have_written_changes_nothing(name: str, make_model: Make) -> None:
    model = make_model(name)
    state, _ = _start(model)
    limits = torch.full((5,), 9)
    free = greedy(model, state, limits)
    for size in (1, 2):
        state, _ = _start(model)
        forced = greedy(model, state, limits, prefixes=[text.tokens[:size] for text in free])
        assert [text.tokens for text in forced] == [text.tokens for text in free]


def test_no_special_token_is_ever_written(make_model: Make) -> None:
    model = make_model("laptop-translator")
    state, limits = _start(model)
    for texts in beam_search(model, state, limits, beam=4):
        assert not {token for text in texts for token in text.tokens} & {*NEVER_GENERATED, END}


def test_limits_hold_row_by_row(make_model: Make) -> None:
    model = make_model("recurrent-translator")
    state, limits = _start(model)
    for texts, limit in zip(beam_search(model, state, limits, beam=2), limits, strict=True):
        assert all(len(text.tokens) <= limit for text in texts)


def test_a_learned_table_of_positions_ends_a_translation_instead_of_breaking_it(make_model: Make) -> None:
    model = make_model("laptop-translator", positions="learned", max_length=12)
    for texts in translate_ids(model, [[6, 7, 8] * 3, [6]], beam=2):
        assert all(len(text.tokens) <= 12 for text in texts)


def test_a_small_step_takes_one_thread_and_gives_the_others_back(make_model: Make) -> None:
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
def test_the_logits_after_the_last_token_are_the_last_of_all(make_model: Make, name: str) -> None:
    model = make_model(name)

    def state() -> Any:
        return _start(model)[0] if "writer" not in name else model.start(5)

    tokens = torch.randint(6, 9, (5, 4))
    last = model.extend(tokens, state(), last=True)
    assert last.shape[1] == 1
    torch.testing.assert_close(last[:, 0], model.extend(tokens, state())[:, -1])
