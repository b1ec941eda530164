"""Search: the same texts however they are found."""

from __future__ import annotations

import itertools

import pytest
import torch

import heedful
from heedful.generation.search import FORBIDDEN, beam_search, greedy, log_softmax
from heedful.text.special import END, START

FAMILIES = ["laptop-translator", "recurrent-translator", "recurrent-bottleneck"]


def _model(name: str, vocabulary: int = 11) -> torch.nn.Module:
    torch.manual_seed(4)
    size = {"width": 16} if name.startswith("recurrent") else {"width": 16, "heads": 2, "layers": 2}
    model = heedful.build(name, vocabulary=vocabulary, **size).eval()
    for weight in model.parameters():
        weight.data *= 2.5  # sharper than a fresh model, so that texts differ and end
    return model


def _start(model: torch.nn.Module, rows: int = 5) -> tuple[object, torch.Tensor]:
    lengths = torch.tensor([7, 3, 5, 1, 6])[:rows]
    source = torch.randint(6, 9, (5, 7), generator=torch.Generator().manual_seed(1))[:rows]
    return model.start(source, lengths), torch.tensor([9, 4, 12, 2, 6])[:rows]


def _log_probability(model: torch.nn.Module, row: int, text: list[int]) -> float:
    """By teacher forcing, the whole text at once."""
    state, _ = _start(model)
    state.reorder(torch.tensor([row]))
    with torch.no_grad():
        scores = log_softmax(model.extend(torch.tensor([[START, *text]]), state)[0])
    return float(sum(scores[i, token] for i, token in enumerate([*text, END])))


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_takes_the_likeliest_token_at_every_step(name: str) -> None:
    model = _model(name)
    state, limits = _start(model)
    for row, found in enumerate(greedy(model, state, limits)):
        text: list[int] = []
        for _ in range(int(limits[row])):
            alone, _ = _start(model)
            alone.reorder(torch.tensor([row]))
            with torch.no_grad():
                best = int(log_softmax(model.extend(torch.tensor([[START, *text]]), alone)[:, -1]).argmax())
            if best == END:
                break
            text.append(best)
        assert found.tokens == text


@pytest.mark.parametrize("name", FAMILIES)
def test_a_batch_finds_what_each_row_finds_alone(name: str) -> None:
    model = _model(name)
    state, limits = _start(model)
    together = beam_search(model, state, limits, beam=3)
    for row in range(5):
        alone, _ = _start(model)
        alone.reorder(torch.tensor([row]))
        (found,) = beam_search(model, alone, limits[row : row + 1], beam=3)
        assert [text.tokens for text in found] == [text.tokens for text in together[row]]


@pytest.mark.parametrize("name", FAMILIES)
def test_log_probabilities_are_those_of_teacher_forcing(name: str) -> None:
    model = _model(name)
    state, limits = _start(model)
    for row, found in enumerate(beam_search(model, state, limits, beam=3)):
        for text in found:
            if len(text.tokens) < int(limits[row]):
                assert text.log_probability == pytest.approx(_log_probability(model, row, text.tokens), abs=1e-4)


def test_a_wide_beam_finds_the_best_of_all_texts() -> None:
    """Against every text of up to 3 tokens over a small vocabulary."""
    model = _model("laptop-translator", vocabulary=9)
    state, _ = _start(model, rows=2)
    found = beam_search(model, state, torch.tensor([4, 4]), beam=60, length_penalty=0.0)
    words = [token for token in range(9) if token not in (*FORBIDDEN, END)]
    texts = [list(text) for size in range(4) for text in itertools.product(words, repeat=size)]
    for row in range(2):
        best = max(texts, key=lambda text: _log_probability(model, row, text))
        ended = [text for text in found[row] if len(text.tokens) < 4]
        assert ended[0].tokens == best


def test_beam_of_one_is_greedy() -> None:
    model = _model("laptop-translator")
    state, limits = _start(model)
    other, _ = _start(model)
    assert [texts[0] for texts in beam_search(model, state, limits, beam=1)] == greedy(model, other, limits)


def test_no_special_token_is_ever_written() -> None:
    model = _model("laptop-translator")
    state, limits = _start(model)
    for texts in beam_search(model, state, limits, beam=4):
        assert not {token for text in texts for token in text.tokens} & {*FORBIDDEN, END}


def test_limits_hold_row_by_row() -> None:
    model = _model("recurrent-translator")
    state, limits = _start(model)
    for texts, limit in zip(beam_search(model, state, limits, beam=2), limits, strict=True):
        assert all(len(text.tokens) <= limit for text in texts)
