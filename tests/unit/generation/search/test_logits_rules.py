"""Rules: what they close is never written, whoever searches; what they leave open is as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.generation.continuation import generate_ids
from heedful.generation.search.logits_rules import LogitsRules, apply_repetition_penalty
from heedful.generation.search.sampling import SamplingConfig
from heedful.generation.search.stop_strings import START_STATE, FORBIDDEN, STOPPED, StringAutomaton
from heedful.generation.sequence_to_sequence import translate_ids
from heedful.text.special_tokens import END

Make = Callable[..., Any]
SPELLINGS = [b"", b"a", b"b", b"ab", b"ba", b"aab", b"bbb", b"c"]
HOW: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 3, "n_best": 3},
    "chance": {"draw": SamplingConfig(temperature=1.0), "n_best": 3},
}
every_search = pytest.mark.parametrize("how", HOW)
every_family = pytest.mark.parametrize("name", ["laptop-translator", "recurrent-translator"])


@settings(deadline=None, max_examples=150, derandomize=True)
@given(
    tokens=st.lists(st.integers(1, len(SPELLINGS) - 1), max_size=8),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), max_size=2),
    forbidden=st.lists(st.text("abc", min_size=1, max_size=4), max_size=2),
)
def test_a_text_is_met_where_it_stands_however_tokens_spell_it(
    tokens: list[int], stop: list[str], forbidden: list[str]
) -> None:
    """Also across the borders of tokens, inside one, and when one text is part of another."""
    patterns = StringAutomaton(SPELLINGS, stop=stop, forbidden=forbidden)
    where, text = torch.tensor([START_STATE]), ""
    for token in tokens:
        where = patterns.next_states(where, torch.tensor([token]))
        text += SPELLINGS[token].decode()
        met = [name for name, texts in ((STOPPED, stop), (FORBIDDEN, forbidden)) if any(each in text for each in texts)]
        assert (int(where) in met) if met else (int(where) not in (STOPPED, FORBIDDEN))
        if met:
            return


def test_characters_of_several_bytes_are_met_when_their_last_byte_is_written() -> None:
    snow = "雪".encode()
    patterns = StringAutomaton([snow[:1], snow[1:2], snow[2:], snow], stop=["雪"])
    where = torch.tensor([START_STATE])
    for token, met in ((0, False), (1, False), (0, False), (1, False), (2, True)):
        where = patterns.next_states(where, torch.tensor([token]))
        assert (int(where) == STOPPED) == met


@every_search
@every_family
def test_a_forbidden_text_is_never_written(name: str, how: str, make_model: Make, make_tokenizer: Make) -> None:
    tokenizer = make_tokenizer("unigram", 300)
    model = make_model(name, len(tokenizer), sharper=2.0)
    sources = tokenizer.encode(["3 May", "Monday"])
    longer = {**HOW[how], "rules": LogitsRules(min_length=8)}
    free = tokenizer.decode([text.tokens for found in translate_ids(model, sources, **longer) for text in found])
    assert any(len(text) > 3 for text in free)
    forbidden = [text[1:3] for text in free if len(text) > 3] + [free[0][0]]
    rules = LogitsRules(min_length=8, automaton=StringAutomaton(tokenizer.token_bytes(range(len(tokenizer))), forbidden=forbidden))
    found = translate_ids(model, sources, rules=rules, **HOW[how])
    for text in tokenizer.decode([text.tokens for texts in found for text in texts]):
        assert not [each for each in forbidden if each in text]


@every_search
@every_family
def test_a_stop_text_ends_the_writing_as_soon_as_it_is_there(
    name: str, how: str, make_model: Make, make_tokenizer: Make
) -> None:
    tokenizer = make_tokenizer("unigram", 300)
    model = make_model(name, len(tokenizer), sharper=2.0)
    sources = tokenizer.encode(["3 May", "Monday"])
    longer = {**HOW[how], "rules": LogitsRules(min_length=8)}
    free = tokenizer.decode([text.tokens for found in translate_ids(model, sources, **longer) for text in found])
    stop = next(text[2:5] for text in free if len(text) > 6)
    rules = LogitsRules(min_length=8, automaton=StringAutomaton(tokenizer.token_bytes(range(len(tokenizer))), stop=[stop]))
    found = [text.tokens for texts in translate_ids(model, sources, rules=rules, **HOW[how]) for text in texts]
    before, whole = tokenizer.decode([text[:-1] for text in found]), tokenizer.decode(found)
    assert any(stop in text for text in whole)
    assert not any(stop in text for text in before)


def test_a_stop_text_in_the_prompt_stops_nothing(make_model: Make) -> None:
    model = make_model("laptop-writer", vocabulary=8, sharper=1.0)
    rules = LogitsRules(automaton=StringAutomaton(SPELLINGS, stop=["aab"]))
    ((found,),) = generate_ids(model, [[5, 5]], limit=10, draw=SamplingConfig(temperature=1.0), rules=rules)
    assert found.tokens


def _shortest(found: list[list[Any]]) -> int:
    return min(len(text.tokens) for texts in found for text in texts)


@every_search
@every_family
def test_no_text_ends_before_its_least_length(name: str, how: str, make_model: Make) -> None:
    sources = [[6, 7, 8], [6], [8, 8]]
    models = (make_model(name, seed=seed) for seed in range(30))
    model = next(model for model in models if _shortest(translate_ids(model, sources, **HOW[how])) < 7)
    for texts in translate_ids(model, sources, rules=LogitsRules(min_length=7), **HOW[how]):
        assert all(len(text.tokens) >= 7 for text in texts)


def test_a_repeated_token_is_worth_less_and_others_the_same() -> None:
    scores = torch.log(torch.tensor([[0.1, 0.2, 0.7], [0.1, 0.2, 0.7]]))
    found = apply_repetition_penalty(scores, torch.tensor([[2, 2], [0, 1]]), 2.0)
    expected = torch.log(torch.tensor([[0.1, 0.2, 0.49], [0.01, 0.04, 0.7]]))
    torch.testing.assert_close(found, expected)


def test_a_penalty_makes_texts_repeat_less(make_model: Make) -> None:
    model = make_model("laptop-writer", vocabulary=40)
    plain, penalised_ = (
        generate_ids(model, [[7, 8]], limit=30, rules=LogitsRules(min_length=30, repetition_penalty=penalty))[0][0].tokens
        for penalty in (1.0, 5.0)
    )
    assert len(set(penalised_)) > len(set(plain))
    assert not {7, 8} & set(penalised_[:5])  # the prompt counts as well


def test_log_probabilities_stay_the_models_own_whatever_the_rules(make_model: Make) -> None:
    model = make_model("laptop-translator")
    for search in HOW.values():
        (found,) = translate_ids(model, [[6, 7, 8]], rules=LogitsRules(min_length=6, repetition_penalty=1.5), **search)
        for text in found:
            source, target = torch.tensor([[6, 7, 8, END]]), torch.tensor([[2, *text.tokens]])
            logits = model(source, target)[0].detach()
            logits[:, :3] = -torch.inf
            scores = logits.log_softmax(-1)
            expected = [float(scores[place, token]) for place, token in enumerate([*text.tokens, END])]
            assert text.token_log_probabilities == pytest.approx(
                expected[: len(text.token_log_probabilities)], abs=1e-4
            )


def test_where_everything_is_forbidden_a_text_ends(make_model: Make) -> None:
    model = make_model("laptop-translator", vocabulary=8)
    everything = StringAutomaton([b"", b"", b"", b"", b"a", b"b", b"c", b"d"], forbidden=["a", "b", "c", "d"])
    ((found,),) = translate_ids(model, [[6]], beam=1, rules=LogitsRules(min_length=3, automaton=everything))
    assert found.tokens == []
