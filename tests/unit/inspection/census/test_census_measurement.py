"""The census equals ablating parts one at a time, for every family and task; roles, intervals, resuming."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.data.table_reader import LIST_SEPARATOR
from heedful.errors import UsageError
from heedful.inspection.alignment_head_selection import select_head
from heedful.inspection.census import census_measurement
from heedful.inspection.census.census_result import Census
from heedful.inspection.census.census_table import census_table
from heedful.inspection.census.head_rules import MIXED, UNIFORM, role_of
from heedful.inspection.census.output_scores import score_outputs
from heedful.inspection.census.paired_bootstrap import PairedBootstrap
from heedful.inspection.text_pass import run_passes
from heedful.text.word_tokens import tokenize_words

TEXTS = ["a small dog runs in the green park", "two men ride a bicycle", "a boy in a blue shirt runs", "two dogs"]
PAIRS = [*zip(TEXTS, reversed(TEXTS), strict=True)]
EXAMPLES: dict[str, list[Any]] = {
    "translate": PAIRS,
    "translate recurrent": PAIRS,
    "generate": TEXTS,
    "generate recurrent": TEXTS,
    "classify": [(text, str(number % 2)) for number, text in enumerate(TEXTS)],
    "fill": TEXTS,
    "answer": [("who runs\ta boy in a blue shirt runs", "a boy"), ("who rides\ttwo men ride a bicycle", "two men")],
}


def examples_of(task: str, model: Any) -> list[Any]:
    if task == "classify":
        return [(text, model.settings.names[int(label)]) for text, label in EXAMPLES[task]]
    return EXAMPLES[task]


def mean_loss(model: Any, examples: list[Any], interventions: list[Any]) -> tuple[float, float]:
    """Loss and accuracy with interventions, one text at a time, by the public API."""
    total = correct = outputs = 0.0
    with torch.inference_mode():
        for example in examples:
            for text_pass in model.scored_passes(example):
                (logits,) = model.intervened(lambda batch: run_passes(model.model, batch), [text_pass], interventions)
                scores = score_outputs([text_pass], [logits])
                total, correct = total + scores.loss[0], correct + scores.correct[0]
                outputs += len(text_pass.outputs)
    return total / outputs, correct / outputs


@pytest.mark.parametrize("task", EXAMPLES)
def test_a_census_equals_ablating_parts_one_at_a_time(
    task: str, small_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(census_measurement, "ABLATED_TOKENS", 100)  # several batches of several ablations
    model = small_model(task)
    examples = examples_of(task, model)
    census = model.census(examples)
    model.measure_means(examples)
    base = mean_loss(model, examples, [])
    assert census.loss.value == pytest.approx(base[0], abs=1e-5)
    assert census.accuracy.value == pytest.approx(base[1])
    assert len({part.part for part in census.parts}) == len(census.parts) > 4
    for part in census.parts:
        for to, change in part.changes.items():
            loss, accuracy = mean_loss(model, examples, [heedful.Ablate(part.part, to=to)])
            assert change.loss.value == pytest.approx(loss - base[0], abs=2e-5), (part.part, to)
            assert change.accuracy.value == pytest.approx(accuracy - base[1], abs=1e-6), (part.part, to)


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("translate", {"encoder_causal": True, "window": 3, "norm_order": "pre", "positions": "rotary"}),
        ("translate", {"positions": "alibi", "exclude_self": True}),
        ("generate", {"decoder_causal": False, "positions": "learned"}),
    ],
)
def test_a_census_keeps_the_masks_of_the_model(
    task: str, settings: dict[str, Any], small_model: Callable[..., Any]
) -> None:
    model = small_model(task, **settings)
    census = model.census(EXAMPLES[task], to=["zero"])
    base, _ = mean_loss(model, EXAMPLES[task], [])
    for part in (part.part for part in census.parts if part.head in (None, 1)):
        loss, _ = mean_loss(model, EXAMPLES[task], [heedful.Ablate(part)])
        assert census.part(part).changes["zero"].loss.value == pytest.approx(loss - base, abs=2e-5), part


def test_a_census_has_every_head_attention_feed_forward_skip_and_position(small_model: Callable[..., Any]) -> None:
    census = small_model("translate").census(PAIRS, to=["zero"])
    kinds = [(part.kind, part.head is not None) for part in census.parts]
    heads = 4 * (2 + 2 * census_layers(census))
    assert kinds.count(("attention", True)) + kinds.count(("cross-attention", True)) == heads
    assert kinds.count(("feed-forward", False)) == 2 + census_layers(census)
    assert kinds.count(("skip", False)) == 2 * 2 + 3 * census_layers(census)
    assert kinds.count(("positions", False)) == 2


def census_layers(census: Census) -> int:
    """The number of decoder layers."""
    return 1 + max(part.layer or 0 for part in census.parts if part.stack == "decoder")


def test_a_recurrent_model_has_its_attention_and_gates(small_model: Callable[..., Any]) -> None:
    census = small_model("translate recurrent").census(PAIRS, to=["zero"])
    assert census.part("cross").role is not None
    assert {"gate", "cross-attention"} == {part.kind for part in census.parts}
    assert census.part("decoder.0.update").changes["zero"].loss.value != 0


def test_a_network_over_a_window_has_its_layers(small_model: Callable[..., Any]) -> None:
    census = small_model("generate recurrent", cell="window").census(TEXTS)
    assert [(part.part, part.kind) for part in census.parts] == [
        ("decoder.0.hidden", "feed-forward"), ("decoder.1.hidden", "feed-forward"),
    ]  # fmt: skip
    assert all(change.loss.value != 0 for part in census.parts for change in part.changes.values())


def test_a_long_table_is_cut_in_the_middle_if_that_saves_rows(small_model: Callable[..., Any]) -> None:
    model = small_model("classify")
    census = model.census(examples_of("classify", model), to=["zero"])
    rows = len(census.parts)
    assert "more" not in census_table(census, rows=rows - 1)
    assert "2 more" in census_table(census, rows=rows - 2)
    assert "classes" not in census_table(census), "each text has one class"


def test_alibi_biases_are_ablated_to_zero_only(small_model: Callable[..., Any]) -> None:
    """ALiBi adds a bias for each pair of tokens, which has no mean over texts of several lengths."""
    census = small_model("translate", positions="alibi").census(PAIRS)
    assert set(census.part("encoder.positions").changes) == {"zero"}
    assert set(census.part("encoder.0.attention").changes) == {"zero", "mean"}
    assert "encoder.positions" in census_table(census)


def test_multi_label_texts_are_scored_by_a_decision_per_class(small_model: Callable[..., Any]) -> None:
    model = small_model("classify")
    model.settings = model.settings.with_changes(multi_label=True)
    one, two = model.settings.names[:2]
    examples = [(TEXTS[0], LIST_SEPARATOR.join([one, two])), (TEXTS[1], one), (TEXTS[2], ""), (TEXTS[3], two)]
    census = model.census(examples, to=["zero"])
    assert (census.texts, census.outputs, census.unit) == (4, 4 * model.model.config.classes, "class")
    logits = torch.cat([model.look(text, one).outputs and _logits(model, text, one) for text in TEXTS])
    labels = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
    assert census.loss.value == pytest.approx(float(expected), abs=1e-5)


def _logits(model: Any, text: str, label: str) -> torch.Tensor:
    with torch.inference_mode():
        return run_passes(model.model, [model.text_pass(text, label)])[0]


def test_a_resumed_census_gives_the_same_numbers(
    small_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(census_measurement, "TEXT_TOKENS", 20)
    model, state = small_model("translate"), tmp_path / "state.npz"
    uninterrupted = model.census(PAIRS, to=["zero"])
    score, calls = census_measurement.score_pass_states, [0]

    def interrupted(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == 40:
            raise KeyboardInterrupt
        return score(*arguments)

    monkeypatch.setattr(census_measurement, "score_pass_states", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.census(PAIRS, to=["zero"], state=state)
    assert state.exists()
    resumed = model.census(PAIRS, to=["zero"], state=state)
    counted = calls[0]
    again = model.census(PAIRS, to=["zero"], state=state)
    assert calls[0] == counted, "a complete census is measured once"
    assert again.parts == resumed.parts
    for part, expected in zip(resumed.parts, uninterrupted.parts, strict=True):
        assert part.changes["zero"].loss.value == pytest.approx(expected.changes["zero"].loss.value, abs=1e-6)
    calls[0] = 40
    model.census(PAIRS, to=["zero"])
    assert counted < calls[0], "the resumed census measured everything again"
    swapped = [(target, source) for source, target in PAIRS]
    assert model.census(swapped, to=["zero"], state=state).loss == model.census(swapped, to=["zero"]).loss


def test_a_damaged_state_file_is_ignored(small_model: Callable[..., Any], tmp_path: Path) -> None:
    state = tmp_path / "state.npz"
    state.write_bytes(b"PK not really")
    census = small_model("translate").census(PAIRS, to=["zero"], state=state)
    assert np.isfinite(census.loss.value)


def test_bootstrap_intervals_contain_the_mean_and_pair_texts() -> None:
    generator = np.random.default_rng(1)
    tokens = generator.integers(5, 15, 200).astype(float)
    difficulty = generator.normal(3, 2, 200) * tokens
    gain = 0.1 * tokens + generator.normal(0, 0.05, 200)
    bootstrap = PairedBootstrap(tokens)
    change = bootstrap.mean((difficulty + gain) - difficulty)
    assert change.low < 0.1 < change.high
    assert change.excludes_zero
    assert change.high - change.low < 0.01, "the difficulty of the texts cancels"
    assert not bootstrap.mean(generator.normal(0, 1, 200)).excludes_zero


def test_roles_follow_the_measured_shares() -> None:
    assert role_of({"next token": 0.9, "delimiter": 0.5}, {"next token": 0.1, "delimiter": 0.4}, 0.2) == "next token"
    assert role_of({"delimiter": 0.5}, {"delimiter": 0.45}, 0.95) == UNIFORM
    assert role_of({"delimiter": 0.5}, {"delimiter": 0.45}, 0.5) == MIXED


def test_a_previous_token_head_is_detected(small_model: Callable[..., Any]) -> None:
    model = small_model("fill")

    def look_back(weights: torch.Tensor, site: Any) -> torch.Tensor:
        edited = weights.clone()
        edited[:, 1] = torch.eye(weights.shape[-1]).roll(1, 0)
        return edited

    with heedful.edit(model.model, {"encoder.1.attention.weights": look_back}):
        passes = [text_pass for text in TEXTS for text_pass in model.scored_passes(text)]
        roles = census_measurement.measure_roles(model.model, passes, lambda _: None, units=("words", "words"))
    role = roles["encoder.1.attention.head.1"]
    assert role.role == "previous token"
    assert role.share == pytest.approx(1.0)
    assert 0.05 < role.chances["previous token"] < 0.3


REPEATED = ["two dog in two men", "the dog in the park", "a dog in a bicycle"]


def tokens_meant(rule: str, pieces: list[str]) -> torch.Tensor:
    """The token that a head of this role reads, for each token between START and END; independent of `head_rules`."""
    last = len(pieces) - 1
    meant = {
        "previous token": [max(0, query - 1) for query in range(last + 1)],
        "next token": [min(last, query + 1) for query in range(last + 1)],
        "same position": [*range(last + 1)],
        "delimiter": [0 if query % 2 else last for query in range(last + 1)],  # START and END
        "same token": [{1: 4, 4: 1}.get(query, query) for query in range(last + 1)],
        "rare word": [5] * (last + 1),
    }[rule]
    return torch.eye(last + 1)[meant]


@pytest.mark.parametrize(
    "rule", ["previous token", "next token", "same position", "delimiter", "same token", "rare word", "uniform"]
)
def test_a_head_that_follows_a_rule_gets_its_role(rule: str, small_model: Callable[..., Any]) -> None:
    model = small_model("classify")
    passes = [model.text_pass(text) for text in REPEATED]
    if rule == "rare word":  # the last word of each text occurs in no other text
        assert all(first.split()[4] not in second for first in REPEATED for second in REPEATED if second != first)

    def follow(weights: torch.Tensor, site: Any) -> torch.Tensor:
        edited = weights.clone()
        for row, text_pass in enumerate(passes):
            pieces = list(text_pass.inputs.pieces)
            assert len(pieces) == weights.shape[-1] == 7
            edited[row, 2] = torch.full((7, 7), 1 / 7) if rule == "uniform" else tokens_meant(rule, pieces)
        return edited

    with heedful.edit(model.model, {"encoder.0.attention.weights": follow}):
        roles = census_measurement.measure_roles(model.model, passes, lambda _: None, units=("words", "words"))
    role = roles["encoder.0.attention.head.2"]
    assert role.role == rule
    assert role.share is None or role.share == pytest.approx(1.0)
    assert role.entropy == pytest.approx(1.0 if rule == "uniform" else 0.0, abs=1e-6)


def test_a_census_is_written_as_json_page_and_picture(small_model: Callable[..., Any], tmp_path: Path) -> None:
    census = small_model("translate").census(PAIRS)
    stored = json.loads(census.save(tmp_path / "census.json").read_text())
    assert stored == json.loads(json.dumps(census.to_json()))
    assert set(stored["parts"][0]["changes"]) == {"zero", "mean"}
    page = census.save(tmp_path / "census.html").read_text()
    assert "decoder.0.cross.head.1" in page
    assert "<svg" in page
    assert "<script" not in page
    assert 'src="http' not in page
    assert census.save(tmp_path / "census.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match=r"unknown kind of file '\.gif'"):
        census.save(tmp_path / "census.gif")


def test_the_table_ranks_parts_by_the_rise_of_the_loss_without_them(small_model: Callable[..., Any]) -> None:
    census = small_model("translate").census(PAIRS, to=["zero"])
    ranked = [part.changes["zero"].loss.value for part in census.ranked()]
    assert ranked == sorted(ranked, reverse=True)
    assert str(census).index(census.ranked()[0].part) < str(census).index(census.ranked()[-1].part)


@pytest.mark.parametrize("task", ["generate", "fill"])
def test_long_running_text_is_read_in_windows(task: str, small_model: Callable[..., Any]) -> None:
    model = small_model(task, max_length=16, positions="learned")
    passes = model.scored_passes(" ".join(TEXTS * 3))
    assert len(passes) > 2
    assert max(len(text_pass.inputs) for text_pass in passes) <= 16


@pytest.mark.parametrize(
    ("task", "examples", "message"),
    [
        ("translate", [], "no texts to take a census on"),
        ("translate", ["a dog"], "texts with their answers, as pairs; got 'a dog'"),
        ("encode", [("a", "b")], "makes vectors"),
        ("answer", [("who runs\ta dog runs", "a cat")], "does not stand in the passage"),
    ],
)
def test_a_census_that_cannot_be_taken_is_one_line(
    task: str, examples: list[Any], message: str, small_model: Callable[..., Any]
) -> None:
    with pytest.raises(UsageError, match=message):
        small_model(task).census(examples)
    with pytest.raises(UsageError, match="a census puts 'zero', 'mean' or both in a part's place"):
        small_model(task).census(examples, to=())


def test_progress_counts_every_score_once(small_model: Callable[..., Any]) -> None:
    counted: dict[str, int] = {}

    class Stage:
        def __init__(self, name: str, total: int) -> None:
            self.name, counted[name] = name, -total

        def __enter__(self) -> Callable[[int], object]:
            return self.add

        def __exit__(self, *_: object) -> None: ...

        def add(self, count: int) -> None:
            counted[self.name] += count

    small_model("translate").census(PAIRS, start_progress=Stage)
    assert counted == {"measuring means": 0, "switching parts off": 0, "reading attention": 0}


def test_the_census_finds_the_head_with_the_lowest_alignment_error(
    cipher_translator: Any, cipher_pairs: Callable[..., list[tuple[str, str]]]
) -> None:
    pairs = cipher_pairs(60)
    links = [frozenset((word, word) for word in range(len(source.split()))) for source, _ in pairs]
    tokenized = [tuple(tokenize_words(text, cipher_translator.tokenizer) for text in pair) for pair in pairs]
    alignment = select_head(cipher_translator.model, tokenized, links, units=("words", "words"), aligner="the cipher")
    census = cipher_translator.census(pairs, to=["zero"])
    shares = {part.part: part.role.shares["alignment"] for part in census.parts if "cross.head" in part.part}
    best = max(shares, key=shares.__getitem__)
    assert shares[best] > 0.85
    assert census.part(best).role.role == "alignment"
    attention = alignment.tap.removesuffix(".weights")
    assert best.startswith(attention)
    assert alignment.head is None or best == f"{attention}.head.{alignment.head}"


def test_ablating_the_aligning_attention_breaks_the_order_of_translation(
    cipher_translator: Any, cipher_pairs: Callable[..., list[tuple[str, str]]]
) -> None:
    census = cipher_translator.census(cipher_pairs(60), to=["zero"])
    shares = {part.part: part.role.shares["alignment"] for part in census.parts if "cross.head" in part.part}
    aligning = max(shares, key=shares.__getitem__).partition(".head.")[0]
    assert census.accuracy.value > 0.97
    assert census.part(aligning).changes["zero"].accuracy.high < -0.3
    for positions in ("encoder.positions", "decoder.positions"):
        assert census.part(positions).changes["zero"].accuracy.high < -0.2
