"""Interventions: changes to one call of a model, of every kind, family and task."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import heedful
from heedful import Ablate, Hide, Patch, Replace, Scale, Steer, Uniform, Unmask, UsageError
from heedful.interventions.kinds import as_interventions, describe, interventions_from_json, interventions_schema
from heedful.interventions.parts import model_parts, part_names
from heedful.layers.taps import TapSite, is_observed, record
from heedful.loading import wrap_model
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_kinds import TokenizerConfig

TEXTS = [
    "a small dog runs in the green park",
    "two men ride a red bicycle by the river",
    "the woman reads a book to the child",
    "a boy in a blue shirt plays football",
]
SIZES: dict[str, Any] = {"width": 32, "heads": 4, "layers": 2}
POSITIONS = ("rotary", "alibi", "learned", "sinusoidal")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS * 3, TokenizerConfig(kind="words", vocabulary=60))


def trained(tokenizer: Tokenizer, preset: str, folder: Path | None = None, **changes: Any) -> Any:
    """A model with random weights, scaled so that its outputs depend on its inputs."""
    sizes = {"width": 32} if preset.startswith("recurrent") else SIZES
    model = heedful.build(preset, vocabulary=len(tokenizer), **{**sizes, **changes}).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(1.6)
    return wrap_model(model, (tokenizer,), folder)


def logits(model: Any, text: str = TEXTS[0], target: str = TEXTS[1], **options: Any) -> Tensor:
    """The logits of a pass over a text and its target under interventions."""
    from heedful.inspection.text_pass import run_passes

    edits = model.edits(as_interventions(options.pop("interventions", ())), text)
    with torch.no_grad(), edits.applied(model.model):
        return run_passes(model.model, [model.text_pass(text, target)])[0]


# ---- the effect of each kind


@pytest.mark.parametrize("positions", POSITIONS)
def test_positions_off_makes_a_bidirectional_encoder_blind_to_order(tokenizer: Tokenizer, positions: str) -> None:
    """A7: without positions and masks the vectors of a permuted text are the permuted vectors."""
    model = trained(tokenizer, "laptop-reader", positions=positions, tasks=["masked_token"]).model
    tokens = torch.tensor([[7, 9, 11, 13, 15]])
    order = torch.tensor([3, 0, 4, 1, 2])
    wrapped = wrap_model(model, (tokenizer,))
    with torch.no_grad():
        assert not torch.allclose(model(tokens)[:, order], model(tokens[:, order]), atol=1e-4)
        with wrapped.edits([Ablate("positions")]).applied(model):
            torch.testing.assert_close(model(tokens)[:, order], model(tokens[:, order]))


@pytest.mark.parametrize("positions", POSITIONS)
def test_decoding_step_by_step_equals_one_pass_under_every_kind(tokenizer: Tokenizer, positions: str) -> None:
    """An intervention holds at every decode step: the decoded tokens are the arg max of one pass over all of them."""
    model = trained(tokenizer, "laptop-translator", positions=positions)
    kinds = [
        Ablate("decoder.1.cross", heads=[1, 3]), Ablate("positions"), Ablate("decoder.0.attention.skip"),
        Scale("encoder.1.feed_forward", 0.3), Uniform("decoder.1"), Hide("decoder.*.cross", words=[1, 2]),
        Steer("decoder.0.cross.residual", toward=TEXTS[2], away=TEXTS[3], strength=4.0),
        Patch("encoder.output", TEXTS[1], tokens=[1, 2]), Replace("logits", lambda value, _: value.roll(1, -1)),
    ]  # fmt: skip
    for kind in kinds:
        written = model.translate(TEXTS[0], beam=1, max_length=8, interventions=[kind])
        if written.split():
            predicted = logits(model, target=written, interventions=[kind])[: len(written.split())]
            predicted[:, :3] = -torch.inf
            expected = tokenizer.encode([written])[0]
            assert predicted.argmax(-1).tolist() == expected[: len(predicted)], str(kind)


def test_an_empty_list_decodes_the_baseline_by_the_same_backend(tokenizer: Tokenizer) -> None:
    model = trained(tokenizer, "laptop-translator")
    (baseline,) = model.iter_translate([TEXTS[0]], interventions=[], alignments=True)
    (plain,) = model.iter_translate([TEXTS[0]], alignments=True)
    assert (baseline.text, baseline.alignment) == (plain.text, plain.alignment)
    assert (baseline.backend, plain.backend) == ("torch", "cpu")


def test_uniform_attention_reads_the_mean_of_the_allowed_values(tokenizer: Tokenizer) -> None:
    model = trained(tokenizer, "laptop-writer")
    edits = model.edits([Uniform("decoder.1.attention", heads=[2])])
    with torch.no_grad(), edits.applied(model.model), record(model.model, "decoder.1.attention.weights") as recorded:
        model.model(torch.tensor([[7, 8, 9]]))
    weights = recorded["decoder.1.attention.weights"][0]
    expected = torch.tensor([[1, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]])
    torch.testing.assert_close(weights[2], expected)
    assert not torch.allclose(weights[1], expected)


def test_hidden_words_get_no_attention_and_a_wholly_hidden_text_gives_zeros(tokenizer: Tokenizer) -> None:
    model = trained(tokenizer, "laptop-translator")
    text = TEXTS[0]
    for part, heads in (("decoder.1.cross", slice(None)), ("decoder.1.cross.head.2", slice(2, 3))):
        edits = model.edits([Hide(part, words=[1, 3])], text)
        with torch.no_grad(), record(model.model, "decoder.1.cross.weights") as recorded, edits.applied(model.model):
            model.model(torch.tensor([model.input_row(text).ids]), torch.tensor([[2, 9, 9]]))
        weights = recorded["decoder.1.cross.weights"][0]
        assert (weights[heads][..., [1, 3]] == 0).all()
        assert (weights[..., [0, 2]] > 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    everything = range(len(model.input_row(text).ids))
    edits = model.edits([Hide("decoder.1.cross", tokens=everything)], text)
    with torch.no_grad(), edits.applied(model.model), record(model.model, "decoder.1.cross.heads") as recorded:
        model.model(torch.tensor([model.input_row(text).ids]), torch.tensor([[2, 9, 9]]))
    assert (recorded["decoder.1.cross.heads"] == 0).all()


def test_a_lifted_causal_mask_lets_later_tokens_change_earlier_states(tokenizer: Tokenizer) -> None:
    model = trained(tokenizer, "laptop-writer")
    first, second = torch.tensor([[7, 8, 9]]), torch.tensor([[7, 8, 10]])
    with torch.no_grad():
        assert torch.equal(model.model(first)[:, 0], model.model(second)[:, 0])
        with model.edits([Unmask("decoder.0.attention")], "").applied(model.model):
            assert not torch.allclose(model.model(first)[:, 0], model.model(second)[:, 0], atol=1e-4)


def test_with_the_mask_lifted_every_step_reads_all_tokens_again(tokenizer: Tokenizer) -> None:
    """Greedy decoding equals the arg max of a pass over the tokens so far, at each step."""
    model = trained(tokenizer, "laptop-translator", positions="sinusoidal")
    words = model.translate(TEXTS[0], beam=1, max_length=5, interventions=[Unmask()]).split()
    for step, word in enumerate(words):
        last = logits(model, target=" ".join(words[:step]), interventions=[Unmask()])[-1]
        last[:3] = -torch.inf
        assert tokenizer.decode([[int(last.argmax())]]) == [word]


def test_patching_everything_a_decoder_reads_gives_the_other_text_s_answer(tokenizer: Tokenizer) -> None:
    model = trained(tokenizer, "laptop-translator")
    text = "a small cat sits in the green park".replace("cat", "boy").replace("sits", "plays")
    assert len(text.split()) == len(TEXTS[0].split())
    patched = logits(model, interventions=[Patch("encoder.output", text)])
    torch.testing.assert_close(patched, logits(model, text))


def test_mean_ablation_puts_the_measured_mean_in_place(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = trained(tokenizer, "laptop-translator")
    with pytest.raises(UsageError, match="has no mean activations"):
        model.translate(TEXTS[0], interventions=[Ablate("decoder.0.cross", to="mean")])
    model.measure_means(zip(TEXTS, reversed(TEXTS), strict=True))
    model.save(tmp_path / "model")
    loaded = heedful.load(tmp_path / "model", device="cpu")
    edits = loaded.edits([Ablate("decoder.0.cross", heads=[1], to="mean")])
    values = []
    for text, target in zip(TEXTS, reversed(TEXTS), strict=True):
        with torch.no_grad(), record(loaded.model, "decoder.0.cross.heads") as recorded:
            loaded.model(*(torch.tensor([row.ids]) for row in _rows(loaded, text, target)))
        values.append(recorded["decoder.0.cross.heads"][0, 1])
    with torch.no_grad(), edits.applied(loaded.model), record(loaded.model, "decoder.0.cross.heads") as recorded:
        loaded.model(torch.tensor([[7, 8]]), torch.tensor([[2, 9]]))
    mean = recorded["decoder.0.cross.heads"][0, 1]
    torch.testing.assert_close(mean[0], torch.cat(values).mean(0), atol=1e-4, rtol=1e-3)
    assert torch.equal(mean[0], mean[1])


def _rows(model: Any, text: str, target: str) -> tuple[Any, Any]:
    text_pass = model.text_pass(text, target)
    return text_pass.inputs, text_pass.target


def test_ablating_any_part_of_any_family_changes_the_output(tokenizer: Tokenizer) -> None:
    for preset in ("laptop-translator", "laptop-writer", "recurrent-translator", "recurrent-writer"):
        model = trained(tokenizer, preset)
        plain = logits(model)
        for part in model_parts(model.model).values():
            if part.name.endswith(("mask", ".scores")):
                continue  # masks cannot be zeroed; a recurrent score or key of zeros is tested as uniform attention
            off = logits(model, interventions=[Ablate(part.name)])
            assert not torch.equal(off, plain), part.name
            assert off.isfinite().all(), part.name
        assert torch.equal(logits(model), plain)


def test_zero_scores_of_a_recurrent_attention_are_uniform_attention(tokenizer: Tokenizer) -> None:
    model = trained(tokenizer, "recurrent-translator")
    zero, uniform = (logits(model, interventions=[kind]) for kind in (Ablate("cross.scores"), Uniform("cross")))
    torch.testing.assert_close(zero, uniform)


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "encoder_decoder": ("laptop-translator", {"positions": "alibi", "layers": 1}),
    "decoder": ("laptop-writer", {"positions": "learned", "layers": 1}),
    "gru": ("recurrent-translator", {}),
    "lstm": ("recurrent-writer", {"layers": 2}),
    "window": ("recurrent-translator", {"cell": "window"}),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_patching_from_the_same_text_changes_nothing(tokenizer: Tokenizer, family: str) -> None:
    """In one pass and in step-by-step decoding, a patch replaces the value of the same token."""
    preset, changes = FAMILIES[family]
    model = trained(tokenizer, preset, **changes)
    plain, parts = logits(model), [name for name in part_names(model.model) if ".head." not in name]
    for part in parts:
        patched = logits(model, interventions=[Patch(part, TEXTS[0], target=TEXTS[1])])
        torch.testing.assert_close(patched, plain, atol=1e-5, rtol=1e-4, msg=lambda text, part=part: f"{part}: {text}")
    if family == "window":
        return
    translates = preset.endswith("translator")
    decode = partial(model.translate, TEXTS[0], beam=1, max_length=3) if translates else partial(_continue, model)
    written = decode(interventions=[])
    for part in parts:
        if part.endswith("positions"):
            continue  # a table with a column for every key of the whole text
        patch = Patch(part, TEXTS[0], target=written if translates else written.removeprefix(TEXTS[0]))
        assert decode(interventions=[patch]) == written, part


def _continue(model: Any, **options: Any) -> str:
    return str(model.generate(TEXTS[0], temperature=0.0, max_length=3, **options))


def test_a_recurrent_state_is_patched_from_the_same_token_of_another_text(tokenizer: Tokenizer) -> None:
    model = trained(tokenizer, "recurrent-translator")
    taps = ("encoder.0.hidden", "encoder.0.backward.hidden")
    values = {}
    for text in TEXTS[:2]:
        with torch.no_grad(), record(model.model, *taps) as recorded:
            model.model.start(torch.tensor([model.input_row(text).ids]))
        values[text] = {tap: recorded.over_steps(tap) for tap in taps}
        states = torch.cat([values[text][tap] for tap in taps], -1)
        with torch.no_grad(), record(model.model, "encoder.states") as last:
            model.model.start(torch.tensor([model.input_row(text).ids]))
        torch.testing.assert_close(states, last["encoder.states"])  # in token order, also for the backward direction
    for tap in taps:
        edits = model.edits([Patch(tap, TEXTS[1], tokens=[2])], TEXTS[0])
        with torch.no_grad(), edits.applied(model.model), record(model.model, tap) as recorded:
            model.model.start(torch.tensor([model.input_row(TEXTS[0]).ids]))
        patched = recorded.over_steps(tap)
        torch.testing.assert_close(patched[:, 2], values[TEXTS[1]][tap][:, 2])
        before = 1 if tap == taps[0] else 3  # states before the patched token do not change
        torch.testing.assert_close(patched[:, before], values[TEXTS[0]][tap][:, before])
    edits = model.edits([Steer(taps[0], toward=TEXTS[1])])
    assert edits is not None
    with torch.no_grad(), edits.applied(model.model), record(model.model, taps[0]) as recorded:
        model.model.start(torch.tensor([model.input_row(TEXTS[0]).ids]))
    steered = recorded.over_steps(taps[0])[:, 0] - values[TEXTS[0]][taps[0]][:, 0]
    torch.testing.assert_close(steered, values[TEXTS[1]][taps[0]].mean(1))
    with pytest.raises(UsageError, match="has 9 tokens here and 3 in 'a dog'"):
        model.translate(TEXTS[0], interventions=[Patch(taps[0], "a dog")])


def test_a_masked_text_is_patched_from_the_same_text_without_masks(tokenizer: Tokenizer) -> None:
    model = trained(tokenizer, "laptop-reader", tasks=["masked_token"])
    masked = TEXTS[0].replace("dog", "[MASK]")
    patched = model.fill(masked, interventions=[Patch("encoder.output", TEXTS[0])])
    row = model.input_row(TEXTS[0])
    with torch.no_grad():
        expected = model.model.apply_head("masked_token", model.model(torch.tensor([row.ids])))[0, 3]
    best = model.output_probabilities(expected[None])[0].argmax()
    assert patched.guesses[0][0].word == tokenizer.pieces([int(best)])[0].strip()


def test_an_ablated_head_has_no_attention_and_no_alignment(tokenizer: Tokenizer) -> None:
    for preset, part in (("laptop-translator", "decoder.0.cross"), ("recurrent-translator", "cross")):
        model = trained(tokenizer, preset, **({"layers": 1} if preset == "laptop-translator" else {}))
        plain = model.look(TEXTS[0], TEXTS[1])
        off = model.look(TEXTS[0], TEXTS[1], interventions=[Ablate(part)])
        assert plain.alignment.links
        assert off.alignment.links == ()
        assert not off.attention[part].weights.any()
        others = [name for name in plain.attention if name != part]
        assert all(off.attention[name].weights.any(-1).all() for name in others)
        (translation,) = model.iter_translate([TEXTS[0]], alignments=True, interventions=[Ablate(part)])
        assert translation.alignment == ()
    model = trained(tokenizer, "laptop-translator")
    look = model.look(TEXTS[0], TEXTS[1], interventions=[Ablate("decoder.1.cross.head.2")])
    assert look.attention["decoder.1.cross"].weights.any((1, 2)).tolist() == [True, True, False, True]
    np.testing.assert_allclose(look.attention["decoder.1.cross"].weights[[0, 1, 3]].sum(-1), 1, atol=1e-5)


def test_one_head_alone_is_unmasked_or_replaced(tokenizer: Tokenizer) -> None:
    model = trained(tokenizer, "laptop-writer")
    tokens, tap, shapes = torch.tensor([[7, 8, 9]]), "decoder.1.attention", []
    edits = model.edits([Unmask(f"{tap}.head.2")], "")
    with torch.no_grad(), edits.applied(model.model), record(model.model, f"{tap}.weights") as recorded:
        model.model(tokens)
    later = recorded[f"{tap}.weights"][0].triu(1).sum((1, 2))
    assert (later > 0).tolist() == [False, False, True, False]

    def double(value: Tensor, site: TapSite) -> Tensor:
        shapes.append(tuple(value.shape))
        return value * 2

    doubled = logits(model, interventions=[Replace(f"{tap}.head.3", double)])
    torch.testing.assert_close(doubled, logits(model, interventions=[Scale(tap, 2.0, heads=[3])]))
    assert shapes[0][0] == 1
    assert shapes[0][2] == 32 // 4


def test_a_pattern_matches_the_parts_of_a_stack_and_no_tap_inside_them(tokenizer: Tokenizer) -> None:
    model = trained(tokenizer, "laptop-translator")
    sublayers = [
        f"decoder.{layer}.{sublayer}" for layer in (0, 1) for sublayer in ("attention", "cross", "feed_forward")
    ]
    named = [*sublayers, *(f"{sublayer}.skip" for sublayer in sublayers), "decoder.positions"]
    by_pattern, by_name = (
        logits(model, interventions=[Scale(part, 0.5) for part in parts]) for parts in (["decoder.*"], named)
    )
    torch.testing.assert_close(by_pattern, by_name)


def test_a_tap_on_logits_gets_the_position_of_their_token(tokenizer: Tokenizer) -> None:
    """For a prompt only the last token's logits are computed."""
    for preset in ("laptop-writer", "recurrent-writer"):
        model, steps = trained(tokenizer, preset), []

        def note(value: Tensor, site: TapSite, steps: list[int] = steps) -> None:
            steps.append(site.step)

        model.generate(TEXTS[0], temperature=0.0, max_length=3, interventions=[Replace("logits", note)])
        tokens = len(TEXTS[0].split())
        assert steps == [tokens - 1, tokens, tokens + 1]


# ---- isolation between calls


def test_interventions_do_not_affect_other_threads_or_later_calls(tokenizer: Tokenizer) -> None:
    model = trained(tokenizer, "laptop-translator")
    options: dict[str, Any] = {"beam": 2, "max_length": 8, "engine": "torch"}
    calls = [None, [Ablate("decoder.1.cross")], [Scale("encoder.0", 3.0)], [Replace("logits", lambda v, _: -v)]]
    expected = [model.translate(TEXTS, interventions=call, **options) for call in calls]
    assert len({tuple(texts) for texts in expected}) > 2

    def work(number: int) -> bool:
        call = number % len(calls)
        return all(model.translate(TEXTS, interventions=calls[call], **options) == expected[call] for _ in range(4))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert not is_observed(model.model)
    assert model.translate(TEXTS, **options) == expected[0]


def test_a_paused_stream_does_not_change_other_calls(tokenizer: Tokenizer) -> None:
    model = trained(tokenizer, "laptop-writer")
    flip = [Replace("logits", lambda value, _: -value)]
    options: dict[str, Any] = {"temperature": 0.0, "max_length": 6}
    plain, flipped = (model.generate("a dog", interventions=call, **options) for call in (None, flip))
    assert plain != flipped
    stream = model.stream("a dog", interventions=flip, **options)
    begun = next(stream)
    assert model.generate("a dog", **options) == plain
    assert not is_observed(model.model)
    assert "a dog" + begun + "".join(stream) == flipped


def test_a_stream_created_before_a_recording_and_read_inside_it_is_recorded(tokenizer: Tokenizer) -> None:
    model = trained(tokenizer, "laptop-writer")
    stream = model.stream("a dog", temperature=0.0, max_length=4)
    with record(model.model, "decoder.0.attention.weights") as recorded:
        text = "".join(stream)
    assert len(recorded.history["decoder.0.attention.weights"]) >= len(text.split())


def test_a_tap_in_a_request_gets_step_and_rows(tokenizer: Tokenizer) -> None:
    """Taps get the text index of each row of a beam search, at every step, also in cross-attention."""
    model = trained(tokenizer, "laptop-translator")
    seen: list[tuple[int, list[int], int]] = []

    def note(value: Tensor, site: TapSite) -> None:
        assert site.rows is not None
        seen.append((site.step, site.rows.tolist(), len(value)))

    model.translate(TEXTS[:2], beam=3, max_length=4, interventions=[Replace("decoder.0.cross.weights", note)])
    assert [step for step, _, _ in seen] == [0, 1, 2, 3]
    assert all(len(rows) == batch for _, rows, batch in seen)
    assert sorted(seen[0][1]) == [0, 1]
    assert sorted(seen[1][1]) == [0] * 3 + [1] * 3


def test_a_forward_hook_is_called_whatever_the_backend(tokenizer: Tokenizer, tmp_path: Path) -> None:
    trained(tokenizer, "laptop-translator").save(tmp_path / "model")
    model = heedful.load(tmp_path / "model", device="cpu")
    plain = model.translate(TEXTS[0])
    calls = []
    handle = model.model.decoder.register_forward_hook(lambda *_: calls.append(1))
    assert model.translate(TEXTS[0]) == plain
    handle.remove()
    assert calls


def test_recording_does_not_change_where_a_beam_search_stops(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        trained(tokenizer, "laptop-translator").save(tmp_path / str(seed))
        model = heedful.load(tmp_path / str(seed), device="cpu")
        plain = [result.text for result in model.iter_translate(TEXTS, beam=4, n_best=4)]
        with record(model.model, "decoder.0.cross.weights"):
            recorded = [result.text for result in model.iter_translate(TEXTS, beam=4, n_best=4)]
        assert recorded == plain


def test_words_are_hidden_in_each_text_of_a_list(tokenizer: Tokenizer) -> None:
    model = trained(tokenizer, "laptop-translator")
    hide = [Hide("decoder.*.cross", words=[2])]
    together = model.translate(TEXTS, interventions=hide)
    assert together == [model.translate(text, interventions=hide) for text in TEXTS]
    streamed = list(model.iter_translate(TEXTS, interventions=hide, alignments=True))
    assert [result.text for result in streamed] == together
    for text, result in zip(TEXTS, streamed, strict=True):
        assert result.alignment == next(model.iter_translate([text], interventions=hide, alignments=True)).alignment


@pytest.mark.parametrize("task", ["classify", "fill", "answer", "embed"])
def test_every_task_takes_interventions(tokenizer: Tokenizer, task: str) -> None:
    head = {"classify": "sequence_class", "fill": "masked_token", "answer": "answer_span"}.get(task)
    model = trained(tokenizer, "laptop-reader", **({"tasks": [head]} if head else {}))
    text = "a small [MASK] runs" if task == "fill" else TEXTS[0]
    run = partial(model.answer, "who runs", TEXTS[0]) if task == "answer" else partial(getattr(model, task), text)
    plain, off = run(), run(interventions=[Ablate("encoder.0.attention")])
    assert str(plain) == str(run(interventions=[])) == str(run())
    assert str(plain) != str(off)
    hidden = run(interventions=[Hide("encoder", words=[1])])
    assert str(hidden) != str(plain)


def test_vectors_of_a_text_are_changed_by_its_own_words_whatever_the_task(tokenizer: Tokenizer) -> None:
    """A question-answering model also embeds plain texts, and a translator without a target has no decoder values."""
    for preset, tasks in (("laptop-reader", ["answer_span"]), ("laptop-translator", ()), ("recurrent-translator", ())):
        model = trained(tokenizer, preset, **({"tasks": tasks} if tasks else {}))
        states = "encoder.states" if preset.startswith("recurrent") else "encoder.output"
        patched = model.embed(TEXTS[0], interventions=[Patch(states, TEXTS[1], tokens=range(5))])
        plain, source = (model.word_states(text).words for text in TEXTS[:2])
        assert not np.allclose(patched, model.embed(TEXTS[0]))
        words = model.word_states(TEXTS[0], interventions=[Patch(states, TEXTS[1], tokens=range(5))]).words
        np.testing.assert_allclose(words[3].vector, source[3].vector, atol=1e-6)
        np.testing.assert_allclose(words[7].vector, plain[7].vector, atol=1e-6)
        if preset.startswith("laptop"):
            hidden = [Hide("encoder", words=[1])]
            assert not np.allclose(model.embed(TEXTS[0], interventions=hidden), model.embed(TEXTS[0]))


@pytest.mark.parametrize("task", ["sequence_class", "answer_span", "masked_token"])
def test_the_logits_of_every_head_pass_one_tap(tokenizer: Tokenizer, task: str) -> None:
    model = trained(tokenizer, "laptop-reader", tasks=[task])
    text = {"answer_span": "who runs\ta small dog runs", "masked_token": "a [MASK] runs"}.get(task, TEXTS[0])
    plain, changed = (
        model.look(text, interventions=interventions).outputs for interventions in ([], [Scale("logits", -1.0)])
    )
    assert [(output.label, output.probability) for output in plain] != [
        (output.label, output.probability) for output in changed
    ]


# ---- interventions as values


def test_every_kind_has_a_description_and_round_trips_through_json() -> None:
    kinds = [
        (Ablate("decoder.2.cross", heads=[3]), "head 3 of decoder.2.cross off"),
        (Ablate("encoder.0", to="mean"), "encoder.0 off (mean value)"),
        (Scale("decoder.0", 0.5), "decoder.0 multiplied by 0.5"),
        (Uniform("decoder.1.attention", [0, 1]), "attention of heads 0, 1 of decoder.1.attention uniform"),
        (Hide("decoder.*.cross", words=[4]), "decoder.*.cross may not read word 4"),
        (Hide("encoder", tokens=[0, 2]), "encoder may not read tokens 0, 2"),
        (Unmask(), "causal mask of decoder lifted"),
        (Patch("encoder.0", "a dog", tokens=[1]), "encoder.0 patched from 'a dog' at token 1"),
        (Steer("decoder.0", [1.0, 2.0]), "decoder.0 plus 1 × a vector"),
        (Steer("decoder.0", toward="a", away="b"), "decoder.0 steered by 1 toward 'a' and away from 'b'"),
    ]
    for kind, sentence in kinds:
        assert str(kind) == sentence
        assert interventions_from_json(json.dumps([kind.model_dump()])) == (kind,)
    assert describe([kinds[0][0], kinds[6][0]]) == "head 3 of decoder.2.cross off; causal mask of decoder lifted"
    assert describe([kinds[0][0]] * 30).endswith("; 10 more")
    assert "Ablate" in str(interventions_schema())


def test_a_part_that_is_not_there_is_an_error_with_the_nearest_name(tokenizer: Tokenizer) -> None:
    model = trained(tokenizer, "laptop-translator")
    recurrent = trained(tokenizer, "recurrent-translator")
    cases: list[tuple[Any, Any, str]] = [
        (model, Ablate("decoder.1.cros"), "no part of this model is called 'decoder.1.cros'; did you mean"),
        (model, Ablate("decoder.1.cross.head.9"), "no head 9 in decoder.1.cross: it has heads 0 to 3"),
        (model, Ablate("decoder.1.cross", heads=[4]), "no head 4 in decoder.1.cross"),
        (model, Ablate("decoder.1.feed_forward", heads=[0]), "decoder.1.feed_forward has no heads"),
        (model, Uniform("decoder.1.feed_forward"), "decoder.1.feed_forward is not an attention"),
        (model, Unmask("decoder.1.cross"), "decoder.1.cross has no causal mask"),
        (model, Hide("decoder.*.cross", words=[99]), "has words 0 to 7: there is no word 99"),
        (model, Hide("decoder.1.cross", tokens=[99]), "decoder.1.cross reads 9 tokens: there is no token 99 to hide"),
        (model, Unmask("encoder"), "encoder.0.attention has no causal mask: it reads later tokens already"),
        (model, Scale("decoder.1.cross.mask", 0.5), "decoder.1.cross.mask is a mask, which has no factor"),
        (model, Patch("decoder.1.cross.weights", "a dog"), "decoder.1.cross.weights has 9 tokens here and 3 in"),
        (model, Patch("decoder.1.cross.keys", "a dog"), "decoder.1.cross.keys has 9 tokens here and 3 in"),
        (recurrent, Patch("initial_state", "a dog", tokens=[0]), "has one value for the whole text: leave tokens out"),
        (model, Patch("encoder.output", "a dog"), "has 9 tokens here and 3 in 'a dog'"),
        (model, Patch("encoder.output", "a dog", tokens=[7]), "has 3 tokens at encoder.output: no token 7"),
        (model, Steer("decoder.0.cross", [1.0, 2.0]), "a vector of 2 numbers does not fit"),
        (recurrent, Ablate("positions"), "this model has no positions to change"),
        (recurrent, Unmask(), "no part of this model is called 'decoder'"),
    ]
    for trained_model, intervention, message in cases:
        with pytest.raises(UsageError, match=message.replace("(", r"\(").replace("*", r"\*")):
            trained_model.translate(TEXTS[0], interventions=[intervention])
    reader = trained(tokenizer, "laptop-reader", tasks=["masked_token"])
    with pytest.raises(UsageError, match=r"word 1 of 'a \[MASK\] dog', '\[MASK\]', has no tokens of text; name tokens"):
        reader.fill("a [MASK] dog", interventions=[Hide("encoder", words=[1])])
    with pytest.raises(UsageError, match="'nowhere' is not a device"), record(model.model, "logits", to="nowhere"):
        pass
    with pytest.raises(UsageError, match="interventions must be a list"):
        as_interventions(Ablate("encoder.0"))
    with pytest.raises(UsageError, match=r"heads\.0: name numbers counted from 0, not a mask of true and false"):
        Ablate("decoder.1.cross", heads=[True, False])
    with pytest.raises(UsageError, match="at most 1000 items"):
        as_interventions([Ablate("encoder.0")] * 1001)
    assert Ablate("decoder.1.cross", heads=[3, 3]).heads == (3,)
    with pytest.raises(UsageError, match="unknown setting 'hedas'"):
        as_interventions([{"kind": "ablate", "part": "encoder.0", "hedas": [1]}])
    with pytest.raises(UsageError, match="leave out int8"):
        model.translate(TEXTS[0], interventions=[Ablate("encoder.0")], int8=True)
    with pytest.raises(UsageError, match="no attention to align words by; leave alignments out"):
        trained(tokenizer, "recurrent-translator", attention="none").iter_translate(TEXTS, alignments=True)
    with pytest.raises(UsageError, match="names no words and no tokens"):
        Hide("encoder.0")
    with pytest.raises(UsageError, match="either a vector, or a text"):
        Steer("encoder.0")
    for empty in ({"heads": []}, {"tokens": []}):
        with pytest.raises(UsageError, match="an empty list changes nothing; leave it out to mean all"):
            Patch("encoder.0", "a dog", **empty)
    for content, problem in (
        (
            '[{"kind": "ablate", "part": "encoder.0", "part": "encoder.1"}]',
            "not valid JSON: the key 'part' appears twice",
        ),
        ("[" * 100_000, "not valid JSON"),
        ('[{"kind": "scale", "part": "encoder.0", "factor": NaN}]', "factor: input should be a finite number"),
        ('[{"kind": "scale", "part": "encoder.0", "factor": 1e999}]', "factor: input should be a finite number"),
        ('{"kind": "ablate", "part": "encoder.0"}', "input should be a valid array"),
        ('[{"kind": "patch", "part": "encoder.0"}]', "0: patch needs 'text'"),
        ('[{"kind": "scale"}]', "0: scale needs 'part' and 'factor'"),
        ('[{"part": "encoder.0"}]', "0: 'kind' is missing"),
        ('[{"kind": "explode", "part": "encoder.0"}]', "0: 'explode' is not a kind; use one of ablate, scale, uniform"),
        ("\xff", "not valid JSON"),
    ):
        with pytest.raises(UsageError, match=f"changes.json.*{problem}"):
            interventions_from_json(content.encode("latin-1"), "changes.json")


def test_part_names_are_unique_and_name_heads(tokenizer: Tokenizer) -> None:
    names = part_names(trained(tokenizer, "laptop-translator").model)
    assert len(names) == len(set(names))
    assert {"decoder.1.cross.head.3", "encoder.0.attention.skip", "decoder.positions", "decoder.output"} <= {*names}


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_concurrent_looks_streams_interventions_and_recordings_are_isolated(
    tokenizer: Tokenizer, device: str, tmp_path: Path
) -> None:
    """Includes the default engine, whose first call here has interventions, so that later calls reuse it."""
    trained(tokenizer, "laptop-translator").save(tmp_path / "translator")
    translator = heedful.load(tmp_path / "translator", device=device)
    writer = trained(tokenizer, "laptop-writer")
    writer.model.to(device)
    flip, hide = [Replace("logits", lambda value, _: -value)], [Hide("decoder.*.cross", words=[1])]
    options: dict[str, Any] = {"temperature": 0.0, "max_length": 8}

    def recorded() -> list[float]:
        with record(translator.model, "decoder.1.cross.weights", to="cpu", last=1) as recording:
            translator.translate(TEXTS[0], max_length=8, beam=1, interventions=[])
        return [round(value, 3) for value in recording["decoder.1.cross.weights"].float().flatten().tolist()]

    calls = (
        lambda: translator.translate(TEXTS, max_length=8, interventions=flip),
        lambda: translator.translate(TEXTS, max_length=8),
        lambda: translator.translate(TEXTS, max_length=8, interventions=hide),
        lambda: "".join(writer.stream("a dog", interventions=flip, **options)),
        lambda: "".join(writer.stream("a dog", **options)),
        lambda: (
            translator.look(TEXTS[0], TEXTS[1], interventions=hide)
            .attention["decoder.0.cross"]
            .weights.round(3)
            .tolist()
        ),
        lambda: translator.look(TEXTS[0], TEXTS[1]).attention["decoder.0.cross"].weights.round(3).tolist(),
        recorded,
    )
    expected = [call() for call in calls]
    assert all(changed != plain for changed, plain in zip(expected[0], expected[1], strict=True))
    assert expected[3] != expected[4]
    assert expected[5] != expected[6]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda call: call(), calls * 3)) == expected * 3
    assert not is_observed(translator.model)
    assert heedful.load(tmp_path / "translator", device=device).translate(TEXTS, max_length=8) == expected[1]


def test_a_plain_model_takes_interventions_in_a_block(tokenizer: Tokenizer) -> None:
    model = trained(tokenizer, "laptop-writer").model
    tokens = torch.tensor([[7, 8, 9]])
    with torch.no_grad():
        plain = model(tokens)
        with heedful.intervene(model, [Ablate("decoder.0.attention", heads=[0]), Hide("decoder", tokens=[1])]):
            assert not torch.equal(model(tokens), plain)
        assert torch.equal(model(tokens), plain)
        with (
            pytest.raises(UsageError, match="a plain model has no words"),
            heedful.intervene(model, [Hide("decoder", words=[1])]),
        ):
            pass
