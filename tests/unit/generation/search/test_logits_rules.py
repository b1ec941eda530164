"""Logits rules: stop strings, forbidden strings, minimum length and repetition penalty, in every search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.torch_backend import TorchBackend
from heedful.generation.search.hypotheses import Hypothesis
from heedful.generation.search.logits_rules import LogitsRules, apply_repetition_penalty
from heedful.generation.search.sampling import SamplingConfig
from heedful.generation.search.settings import SearchSettings
from heedful.generation.search.stop_strings import FORBIDDEN, START_STATE, STOPPED, StringAutomaton
from heedful.text.special_tokens import END

Make = Callable[..., Any]
TOKEN_BYTES = [b"", b"a", b"b", b"ab", b"ba", b"aab", b"bbb", b"c"]
SEARCHES = {
    "greedy": SearchSettings(),
    "beam": SearchSettings(beam=3, n_best=3),
    "sampling": SearchSettings(sampling=SamplingConfig(temperature=1.0), n_best=3),
}
every_search = pytest.mark.parametrize("name_of_search", SEARCHES)
every_family = pytest.mark.parametrize("name", ["laptop-translator", "recurrent-translator"])


def _translate(model: Any, sources: list[list[int]], name_of_search: str, rules: LogitsRules) -> list[list[Hypothesis]]:
    return TorchBackend(model).translate(SearchRequest(sources, replace(SEARCHES[name_of_search], rules=rules)))


@settings(deadline=None, max_examples=150, derandomize=True)
@given(
    tokens=st.lists(st.integers(1, len(TOKEN_BYTES) - 1), max_size=8),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), max_size=2),
    forbidden=st.lists(st.text("abc", min_size=1, max_size=4), max_size=2),
)
def test_strings_are_matched_whatever_the_token_boundaries(
    tokens: list[int], stop: list[str], forbidden: list[str]
) -> None:
    """Also inside one token, across tokens, and when one string is part of another."""
    automaton = StringAutomaton(TOKEN_BYTES, stop=stop, forbidden=forbidden)
    state, text = torch.tensor([START_STATE]), ""
    for token in tokens:
        state = automaton.next_states(state, torch.tensor([token]))
        text += TOKEN_BYTES[token].decode()
        expected = [
            outcome for outcome, strings in ((STOPPED, stop), (FORBIDDEN, forbidden)) if any(s in text for s in strings)
        ]
        assert (int(state) in expected) if expected else (int(state) not in (STOPPED, FORBIDDEN))
        if expected:
            return


def test_multi_byte_characters_match_at_their_last_byte() -> None:
    snow = "雪".encode()
    automaton = StringAutomaton([snow[:1], snow[1:2], snow[2:], snow], stop=["雪"])
    state = torch.tensor([START_STATE])
    for token, matches in ((0, False), (1, False), (0, False), (1, False), (2, True)):
        state = automaton.next_states(state, torch.tensor([token]))
        assert (int(state) == STOPPED) == matches


def _free_texts(model: Any, tokenizer: Any, sources: list[list[int]], name_of_search: str) -> list[str]:
    results = _translate(model, sources, name_of_search, LogitsRules(min_length=8))
    texts: list[str] = tokenizer.decode([hypothesis.tokens for hypotheses in results for hypothesis in hypotheses])
    return texts


@every_search
@every_family
def test_forbidden_strings_are_never_generated(
    name: str, name_of_search: str, make_model: Make, make_tokenizer: Make
) -> None:
    tokenizer = make_tokenizer("unigram", 300)
    model = make_model(name, len(tokenizer), sharper=2.0)
    sources = tokenizer.encode(["3 May", "Monday"])
    free = _free_texts(model, tokenizer, sources, name_of_search)
    assert any(len(text) > 3 for text in free)
    forbidden = [text[1:3] for text in free if len(text) > 3] + [free[0][0]]
    automaton = StringAutomaton(tokenizer.token_bytes(range(len(tokenizer))), forbidden=forbidden)
    results = _translate(model, sources, name_of_search, LogitsRules(min_length=8, automaton=automaton))
    for text in tokenizer.decode([hypothesis.tokens for hypotheses in results for hypothesis in hypotheses]):
        assert not [word for word in forbidden if word in text]


@every_search
@every_family
def test_stop_string_ends_generation_at_once(
    name: str, name_of_search: str, make_model: Make, make_tokenizer: Make
) -> None:
    tokenizer = make_tokenizer("unigram", 300)
    model = make_model(name, len(tokenizer), sharper=2.0)
    sources = tokenizer.encode(["3 May", "Monday"])
    stop = next(text[2:5] for text in _free_texts(model, tokenizer, sources, name_of_search) if len(text) > 6)
    automaton = StringAutomaton(tokenizer.token_bytes(range(len(tokenizer))), stop=[stop])
    results = _translate(model, sources, name_of_search, LogitsRules(min_length=8, automaton=automaton))
    tokens = [hypothesis.tokens for hypotheses in results for hypothesis in hypotheses]
    assert any(stop in text for text in tokenizer.decode(tokens))
    assert not any(stop in text for text in tokenizer.decode([token[:-1] for token in tokens]))


def test_stop_string_in_the_prompt_does_not_stop(make_model: Make) -> None:
    model = make_model("laptop-writer", vocabulary=8, sharper=1.0)
    rules = LogitsRules(automaton=StringAutomaton(TOKEN_BYTES, stop=["aab"]))
    search = SearchSettings(sampling=SamplingConfig(temperature=1.0), rules=rules, max_length=10)
    ((hypothesis,),) = TorchBackend(model).generate(SearchRequest([[5, 5]], search))
    assert hypothesis.tokens


def _shortest(results: list[list[Hypothesis]]) -> int:
    return min(len(hypothesis.tokens) for hypotheses in results for hypothesis in hypotheses)


@every_search
@every_family
def test_no_text_is_shorter_than_the_minimum_length(name: str, name_of_search: str, make_model: Make) -> None:
    sources = [[6, 7, 8], [6], [8, 8]]
    models = (make_model(name, seed=seed) for seed in range(30))
    model = next(model for model in models if _shortest(_translate(model, sources, name_of_search, LogitsRules())) < 7)
    assert _shortest(_translate(model, sources, name_of_search, LogitsRules(min_length=7))) >= 7


def test_repetition_penalty_changes_only_tokens_that_occurred() -> None:
    scores = torch.log(torch.tensor([[0.1, 0.2, 0.7], [0.1, 0.2, 0.7]]))
    penalized = apply_repetition_penalty(scores, torch.tensor([[2, 2], [0, 1]]), 2.0)
    expected = torch.log(torch.tensor([[0.1, 0.2, 0.49], [0.01, 0.04, 0.7]]))
    torch.testing.assert_close(penalized, expected)


def test_repetition_penalty_reduces_repetition(make_model: Make) -> None:
    backend = TorchBackend(make_model("laptop-writer", vocabulary=40))

    def generate(penalty: float) -> list[int]:
        rules = LogitsRules(min_length=30, repetition_penalty=penalty)
        return backend.generate(SearchRequest([[7, 8]], SearchSettings(rules=rules, max_length=30)))[0][0].tokens

    plain, penalized = generate(1.0), generate(5.0)
    assert len(set(penalized)) > len(set(plain))
    assert not {7, 8} & set(penalized[:5])  # the prompt counts as well


def test_rules_do_not_change_reported_log_probabilities(make_model: Make) -> None:
    model = make_model("laptop-translator")
    for name_of_search in SEARCHES:
        rules = LogitsRules(min_length=6, repetition_penalty=1.5)
        (hypotheses,) = _translate(model, [[6, 7, 8]], name_of_search, rules)
        for hypothesis in hypotheses:
            source, target = torch.tensor([[6, 7, 8, END]]), torch.tensor([[2, *hypothesis.tokens]])
            logits = model(source, target)[0].detach()
            logits[:, :3] = -torch.inf
            scores = logits.log_softmax(-1)
            expected = [float(scores[index, token]) for index, token in enumerate([*hypothesis.tokens, END])]
            number = len(hypothesis.token_log_probabilities)
            assert hypothesis.token_log_probabilities == pytest.approx(expected[:number], abs=1e-4)


def test_text_ends_where_every_token_is_forbidden(make_model: Make) -> None:
    model = make_model("laptop-translator", vocabulary=8)
    everything = StringAutomaton([b"", b"", b"", b"", b"a", b"b", b"c", b"d"], forbidden=["a", "b", "c", "d"])
    ((hypothesis,),) = _translate(model, [[6]], "greedy", LogitsRules(min_length=3, automaton=everything))
    assert hypothesis.tokens == []
