"""Taps (A9): record or replace any inner value of a running model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from textwrap import dedent
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heedful
from heedful.errors import UsageError
from heedful.layers.attention import attention
from heedful.layers.masks import causal
from heedful.layers.multi_head_attention import CrossAttention, MultiHeadAttention, SelfAttention
from heedful.layers.residual import Residual
from heedful.layers.taps import TapSite, decode_position, edit, is_observed, record, tap_names

TRANSFORMERS: dict[str, dict[str, Any]] = {
    "laptop-translator": {"heads": 4},
    "laptop-writer": {"heads": 4},
    "laptop-reader": {"heads": 4},
    "paper-base": {"heads": 4, "head_width": 6, "value_width": 5},
    "bert-tiny": {"heads": 4},
    "llama-135m": {"heads": 4, "key_value_heads": 2, "feed_forward": 48},
}
RECURRENT = ["recurrent-translator", "recurrent-bottleneck", "recurrent-writer"]
SOURCE = torch.tensor([[5, 9, 2, 11, 3], [7, 7, 1, 0, 49]])
TARGET = torch.tensor([[1, 8, 4], [1, 20, 30]])
LENGTHS = torch.tensor([5, 3])


def zeros(value: Tensor, site: TapSite) -> Tensor:
    return torch.zeros_like(value)


def ones(value: Tensor, site: TapSite) -> Tensor:
    return torch.ones_like(value)


def family(name: str) -> Any:
    settings = TRANSFORMERS.get(name, {})
    return heedful.build(name, vocabulary=50, width=32, layers=2, **settings).eval()


def run(model: Any) -> Tensor:
    reads_a_source = model.config.family.endswith("encoder_decoder")
    output: Tensor = model(SOURCE, TARGET, LENGTHS) if reads_a_source else model(SOURCE)
    return output


def test_tap_names_follow_the_architecture() -> None:
    """The path of the module without the word "blocks", then the point."""
    names = tap_names(heedful.build("laptop-translator", vocabulary=50, width=32, heads=4, layers=1))
    attention = ["mask", "queries", "keys", "values", "scores", "weights", "heads", "output"]
    expected = ["source", "source.tokens", "target", "target.tokens", "logits"]
    for stack, parts in (("encoder", ["attention"]), ("decoder", ["attention", "cross"])):
        expected += [f"{stack}.0.{part}.{point}" for part in parts for point in attention]
        expected += [f"{stack}.0.attention.{point}" for point in ("new_queries", "new_keys")]
        expected += [f"{stack}.0.feed_forward.{point}" for point in ("hidden", "output")]
        expected += [f"{stack}.0.{part}.{p}" for part in (*parts, "feed_forward") for p in ("norm", "skip", "residual")]
        expected += [f"{stack}.0.layer_input", f"{stack}.output"]
    model = heedful.build("laptop-translator", vocabulary=50, width=32, heads=4, layers=1)
    if model.config.positions in ("sinusoidal", "learned"):
        expected += ["source.positions", "target.positions"]
    elif model.config.positions in ("rotary", "alibi"):
        expected += ["encoder.positions", "decoder.positions"]
    assert sorted(names) == sorted(expected)


@pytest.mark.parametrize("name", [*TRANSFORMERS, *RECURRENT])
def test_every_tap_can_be_recorded_without_changing_the_output(name: str) -> None:
    model = family(name)
    names = tap_names(model)
    plain = run(model)
    with record(model, *names) as recorded:
        spy = run(model)
    assert sorted(recorded) == sorted(n for n in names if n != "logits" or plain.shape[-1] == 50)
    assert torch.equal(spy, plain)


@pytest.mark.parametrize("name", ["laptop-translator", "recurrent-translator"])
def test_recording_does_not_change_training_with_dropout(name: str) -> None:
    changes = {} if name.startswith("recurrent") else {"attention_dropout": 0.2}
    model = heedful.build(family(name).config, dropout=0.3, **changes).train()
    torch.manual_seed(3)
    plain = run(model)
    torch.manual_seed(3)
    with record(model, "*"):
        spy = run(model)
    assert torch.equal(spy, plain)
    assert not torch.equal(run(model), plain), "dropout was on"


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_recorded_attention_weights_reproduce_the_fused_kernel_s_output(name: str) -> None:
    """A9: weights · values = heads, although the kernel never stored the weights."""
    model = family(name).double()
    layers = [path for path, module in model.named_modules() if isinstance(module, MultiHeadAttention) and module.fused]
    assert layers
    with record(model, "*.weights", "*.values", "*.heads") as recorded:
        run(model)
    for layer in (path.replace("blocks.", "") for path in layers):
        weights, values, heads = (recorded[f"{layer}.{point}"] for point in ("weights", "values", "heads"))
        copies = weights.shape[1] // values.shape[1]
        torch.testing.assert_close(weights @ values.repeat_interleave(copies, 1), heads, atol=1e-9, rtol=0)
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def test_recorded_weights_show_the_masks() -> None:
    """Above the diagonal of a decoder nothing; past the end of a source nothing."""
    model = family("laptop-translator")
    with record(model, "*.weights") as recorded:
        run(model)
    for layer in ("0", "1"):
        assert not recorded[f"decoder.{layer}.attention.weights"].triu(1).any()
        assert not recorded[f"decoder.{layer}.cross.weights"][1, ..., 3:].any()
        assert not recorded[f"encoder.{layer}.attention.weights"][1, ..., 3:].any()
        assert (recorded[f"decoder.{layer}.cross.weights"][0] > 0).all()


def test_a_recurrent_model_s_recorded_weights_give_its_context() -> None:
    model = family("recurrent-translator").double()
    with record(model, "cross*", "context") as recorded:
        run(model)
    memory = model.start(SOURCE, LENGTHS).memory
    torch.testing.assert_close(recorded["cross.weights"][:, 0] @ memory, recorded["context"])
    torch.testing.assert_close(recorded["cross.weights"].sum(-1), torch.ones(2, 1, 3, dtype=torch.float64))


def test_patterns_match_like_file_names() -> None:
    model = family("laptop-translator")
    with record(model, "decoder.*.cross.weights", "encoder.?.feed_forward.residual") as recorded:
        run(model)
    assert sorted(recorded) == [
        "decoder.0.cross.weights",
        "decoder.1.cross.weights",
        "encoder.0.feed_forward.residual",
        "encoder.1.feed_forward.residual",
    ]


def test_history_has_the_value_of_every_decode_step() -> None:
    model = family("laptop-writer")
    state = model.start(2)
    with record(model, "decoder.0.attention.weights") as recorded, torch.no_grad():
        for step in SOURCE.split(1, dim=1):
            model.extend(step, state)
    visits = recorded.history["decoder.0.attention.weights"]
    assert [tuple(weights.shape) for weights in visits] == [(2, 4, 1, keys) for keys in range(1, 6)]
    assert recorded["decoder.0.attention.weights"] is visits[-1]


def test_gradients_reach_recorded_values() -> None:
    model = family("laptop-reader")
    with record(model, "encoder.0.attention.heads") as recorded:
        output = run(model)
    (gradient,) = torch.autograd.grad(output.square().sum(), recorded["encoder.0.attention.heads"])
    assert gradient.shape == recorded["encoder.0.attention.heads"].shape
    assert gradient.any()


# ---- putting another value in its place


def test_ablating_a_head_removes_exactly_its_contribution() -> None:
    """A5: the output is a sum over heads, so without head 2 it is the rest of the sum."""
    layer = SelfAttention(8, 4).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    with record(layer, "heads") as recorded:
        full = layer(x)
    with edit(layer, {"heads": lambda heads, _: heads.index_fill(1, torch.tensor([2]), 0.0)}):
        without = layer(x)
    torch.testing.assert_close(without, full - layer.contributions(recorded["heads"])[:, 2])


@pytest.mark.parametrize("groups", [4, 2])
def test_replaced_attention_weights_are_used(groups: int) -> None:
    """Even with a fused kernel: uniform weights make every head output the mean value."""
    layer = SelfAttention(8, 4, key_value_heads=groups).double()
    with (
        edit(layer, {"weights": lambda weights, _: torch.full_like(weights, 1 / weights.shape[-1])}),
        record(layer, "values", "heads") as recorded,
    ):
        layer(torch.randn(2, 5, 8, dtype=torch.float64), causal())
    mean = recorded["values"].mean(2, keepdim=True).repeat_interleave(4 // groups, 1)
    torch.testing.assert_close(recorded["heads"], mean.expand_as(recorded["heads"]))


def test_replaced_queries_keys_and_values_are_used() -> None:
    layer = SelfAttention(8, 2).double()
    query, key, value = (torch.randn(2, 2, 5, 4, dtype=torch.float64) for _ in range(3))
    with (
        edit(layer, {"queries": query, "keys": key, "values": value}),
        record(layer, "heads") as recorded,
    ):
        layer(torch.randn(2, 5, 8, dtype=torch.float64), causal())
    torch.testing.assert_close(recorded["heads"], attention(query, key, value, causal()))


@pytest.mark.parametrize("name", ["laptop-translator", "bert-tiny"])
def test_replacing_the_skip_by_zeros_equals_a_model_without_skip_connections(name: str) -> None:
    """Q3: ablating the skip-connections of a built model, pre-norm and post-norm."""
    model = family(name)
    built_without = heedful.build(model.config, skip=False).eval()
    built_without.load_state_dict(model.state_dict())
    with edit(model, {"*.skip": zeros}):
        output = run(model)
    torch.testing.assert_close(output, run(built_without))
    assert not torch.allclose(output, run(model), atol=1e-3)


def test_a_replaced_residual_stream_is_all_that_later_blocks_see() -> None:
    """Another text's stream after block 0 gives that text's output: nothing else passes from below."""
    model, other = family("laptop-reader"), SOURCE.flip(1)
    with record(model, "encoder.0.feed_forward.residual") as recorded:
        expected = model(other)
    with edit(model, {"encoder.0.feed_forward.residual": recorded["encoder.0.feed_forward.residual"]}):
        torch.testing.assert_close(model(SOURCE), expected)


@pytest.mark.parametrize("name", ["laptop-translator", "llama-135m", "recurrent-translator"])
def test_replacing_at_any_point_reaches_the_output(name: str) -> None:
    model = family(name)
    plain = run(model)
    for point in tap_names(model):
        with edit(model, {point: lambda value, _: ~value if value.dtype == torch.bool else value.roll(1, -1) + 0.1}):
            assert not torch.equal(run(model), plain), point
    assert torch.equal(run(model), plain)


def test_replacing_a_value_by_itself_changes_nothing() -> None:
    """Up to rounding: edited weights are multiplied with the values, where a fused kernel would have done both."""
    model = family("laptop-translator").double()
    plain = run(model)
    with edit(model, {"*": lambda value, _: value}):
        torch.testing.assert_close(run(model), plain)


def test_an_in_place_edit_applies_although_a_fused_kernel_computes_the_heads() -> None:
    layer, x = SelfAttention(8, 2), torch.randn(1, 3, 8)

    def clear(weights: Tensor, site: TapSite) -> None:
        weights.zero_()

    with edit(layer, {"weights": clear}), record(layer, "heads") as recorded, torch.no_grad():
        layer(x)
    assert not recorded["heads"].any()


# ---- contexts


def test_nested_contexts_see_outer_replacements() -> None:
    layer, x = SelfAttention(8, 2), torch.randn(1, 3, 8)
    with record(layer, "heads") as outer, edit(layer, {"heads": ones}):
        with record(layer, "heads") as inner, edit(layer, {"heads": lambda heads, _: heads + 1}):
            output = layer(x)
        middle = layer(x)
    assert (inner["heads"] == 1).all()
    assert len(inner.history["heads"]) == 1
    assert not (outer["heads"] == 1).all()
    assert len(outer.history["heads"]) == 2
    all_ones = torch.ones(1, 2, 3, 4)
    torch.testing.assert_close(output, layer.contributions(2 * all_ones).sum(1) + layer.output.bias)
    torch.testing.assert_close(middle, layer.contributions(all_ones).sum(1) + layer.output.bias)
    assert not is_observed(layer)


def test_calls_made_by_a_listener_are_neither_recorded_nor_edited() -> None:
    layer, x = SelfAttention(8, 2), torch.randn(1, 3, 8)
    plain, inner = layer(x), []

    def call_model(heads: Tensor, site: TapSite) -> Tensor:
        inner.append(layer(x))
        return torch.zeros_like(heads)

    with record(layer, "heads") as recorded, edit(layer, {"heads": call_model}):
        output = layer(x)
    assert not torch.allclose(output, plain)
    torch.testing.assert_close(inner, [plain])
    assert len(recorded.history["heads"]) == 1


def test_an_error_restores_the_model_s_listeners() -> None:
    model = family("laptop-writer")
    plain = run(model)
    with (
        pytest.raises(ZeroDivisionError),
        record(model, "*"),
        edit(model, {"*.heads": lambda heads, _: heads / (1 // 0)}),
    ):
        run(model)
    assert not is_observed(model)
    assert torch.equal(run(model), plain)


def test_an_error_in_an_inner_context_keeps_the_outer_listeners() -> None:
    layer, x = SelfAttention(8, 2), torch.randn(1, 3, 8)
    with record(layer, "heads") as recorded:
        with pytest.raises(RuntimeError, match="stop"), edit(layer, {"heads": zeros}):
            raise RuntimeError("stop")
        output = layer(x)
    torch.testing.assert_close(layer.contributions(recorded["heads"]).sum(1) + layer.output.bias, output)


def test_after_the_context_nothing_more_is_recorded() -> None:
    layer, x = SelfAttention(8, 2), torch.randn(1, 3, 8)
    with record(layer, "heads") as recorded:
        layer(x)
    layer(x)
    assert len(recorded.history["heads"]) == 1


def test_contexts_closed_out_of_order_are_closed() -> None:
    layer, x = SelfAttention(8, 2), torch.randn(1, 3, 8)
    plain = layer(x)
    first, second = edit(layer, {"heads": zeros}), record(layer, "heads")
    first.__enter__()
    recorded = second.__enter__()
    first.__exit__(None, None, None)
    assert torch.equal(layer(x), plain)
    second.__exit__(None, None, None)
    assert not is_observed(layer)
    layer(x)
    assert len(recorded.history["heads"]) == 1


def test_a_context_closed_in_another_thread_is_closed_here_too() -> None:
    layer, x = SelfAttention(8, 2), torch.randn(1, 3, 8)
    plain, context = layer(x), edit(layer, {"heads": zeros})
    context.__enter__()
    assert not torch.equal(layer(x), plain)
    closing = Thread(target=context.__exit__, args=(None, None, None))
    closing.start()
    closing.join()
    assert torch.equal(layer(x), plain)


def test_eight_threads_edit_and_record_one_model_without_seeing_each_other() -> None:
    model = family("laptop-translator")
    model.requires_grad_(False)
    plain = run(model)
    changed = {}
    for head in range(4):
        with edit(model, {"decoder.1.cross.heads": partial(scale_head, head=head)}):
            changed[head] = run(model)
    start = Barrier(8)

    def work(number: int) -> bool:
        start.wait(timeout=60)
        head, same = number % 4, True
        for _ in range(10):
            if number >= 4:
                with record(model, "decoder.*") as recorded:
                    same &= torch.equal(run(model), plain) and len(recorded.history["decoder.output"]) == 1
            else:
                with edit(model, {"decoder.1.cross.heads": partial(scale_head, head=head)}):
                    same &= torch.equal(run(model), changed[head])
        return same

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert torch.equal(run(model), plain)


def scale_head(heads: Tensor, site: TapSite, head: int) -> Tensor:
    return torch.where(torch.arange(heads.shape[1])[:, None, None] == head, 3 * heads, heads)


def test_a_listener_receives_the_layer_the_step_the_rows_and_the_mask() -> None:
    model, rows = family("laptop-writer"), torch.tensor([7, 9])
    sites: list[TapSite] = []

    def note(value: Tensor, site: TapSite) -> None:
        sites.append(site)

    state = model.start(2)
    with edit(model, {"decoder.1.attention.weights": note}), torch.no_grad():
        model.extend(SOURCE[:, :3], state)
        with decode_position(3, rows):
            model.extend(SOURCE[:, 3:4], state)
    assert [(site.name, site.layer, site.step) for site in sites] == [
        ("decoder.1.attention.weights", 1, 0),
        ("decoder.1.attention.weights", 1, 3),
    ]
    assert sites[1].rows is rows
    assert sites[0].allowed is not None
    assert sites[1].allowed is not None
    assert torch.equal(sites[0].allowed[0, 0], torch.ones(3, 3).tril().bool())
    assert sites[1].allowed.all()


def test_a_recording_keeps_the_last_values_and_joins_them_over_steps() -> None:
    model = family("laptop-writer")
    state = model.start(2)
    with record(model, "decoder.output", "decoder.0.attention.norm", to="cpu", last=3) as recorded, torch.no_grad():
        for step in SOURCE.split(1, dim=1):
            model.extend(step, state)
    assert len(recorded.history["decoder.output"]) == len(recorded.sites["decoder.output"]) == 3
    assert recorded.over_steps("decoder.output").shape == (2, 3, 32)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_gates_of_a_recurrent_model_reproduce_its_states(cell: str, bidirectional: bool) -> None:
    """The time steps behind the gates' taps compute what PyTorch's fused cell does, padding included."""
    model = heedful.build("recurrent-translator", vocabulary=50, width=32, layers=2, cell=cell,
                          bidirectional=bidirectional).eval().double()  # fmt: skip
    plain = run(model)
    with edit(model, {"encoder.0.hidden": lambda value, _: value, "decoder.1.candidate": lambda value, _: value}):
        torch.testing.assert_close(run(model), plain)
    with record(model, "encoder.1.hidden", "encoder.states", "decoder.*") as recorded:
        assert torch.equal(run(model), plain)
    forward = recorded.over_steps("encoder.1.hidden")
    states = recorded["encoder.states"][..., : forward.shape[2]]
    real = torch.arange(5) < LENGTHS[:, None]
    torch.testing.assert_close(forward[real], states[real])
    assert [site.step for site in recorded.sites["decoder.0.hidden"]] == [0, 1, 2]


# ---- wrong use


def test_an_unknown_tap_name_suggests_the_nearest() -> None:
    model = family("laptop-translator")
    with (
        pytest.raises(UsageError, match=r"matches 'decoder.1.cros.weights'; did you mean 'decoder.1.cross.weights'"),
        record(model, "decoder.1.cros.weights"),
    ):
        pass
    with (
        pytest.raises(UsageError, match=r"no tap of this model matches 'decoder.7.cross.\*'"),
        edit(model, {"source": zeros, "decoder.7.cross.*": zeros}),
    ):
        pass
    assert not is_observed(model)


def test_is_observed_is_true_during_a_recording_only() -> None:
    model, other = SelfAttention(8, 2), SelfAttention(8, 2)
    with record(model, "weights"):
        assert (is_observed(model), is_observed(other)) == (True, False)
        with edit(other, {"weights": zeros}):
            assert is_observed(other)
        assert (is_observed(model), is_observed(other)) == (True, False)
    assert not is_observed(model)


def test_a_replacement_of_the_wrong_shape_is_refused_with_both_shapes() -> None:
    layer = SelfAttention(8, 2)
    wrong = r"heads has shape \(1, 2, 3, 4\), its replacement \(1, 3, 8\)"
    for change in (torch.zeros(1, 3, 8), lambda heads, _: heads.transpose(1, 2).flatten(2)):
        with edit(layer, {"heads": change}), pytest.raises(UsageError, match=wrong):
            layer(torch.randn(1, 3, 8))
    numbers: dict[str, Any] = {"heads": lambda heads, _: 0.0}
    with edit(layer, numbers), pytest.raises(UsageError, match=r"heads is replaced by a tensor, .* got float"):
        layer(torch.randn(1, 3, 8))


def test_a_replacement_of_another_precision_takes_that_of_the_model() -> None:
    layer, x = SelfAttention(8, 2), torch.randn(1, 3, 8)
    plain = layer(x)
    with edit(layer, {"heads": lambda heads, _: heads.double()}):
        torch.testing.assert_close(layer(x), plain)


def test_a_single_module_has_bare_tap_names() -> None:
    attention = ["mask", "queries", "keys", "values", "scores", "weights", "heads", "output"]
    assert tap_names(SelfAttention(8, 2)) == ["new_queries", "new_keys", *attention]
    assert tap_names(CrossAttention(8, 2)) == attention
    assert tap_names(nn.ModuleList([Residual(8)])) == ["0.norm", "0.skip", "0.residual"]
    assert tap_names(nn.Linear(2, 2)) == []


# ---- torch.compile

COMPILED = """
    import torch, heedful
    from heedful import edit, record, tap_names

    source, target = torch.tensor([[5, 9, 2], [7, 1, 0]]), torch.tensor([[1, 8], [1, 20]])
    lengths = torch.tensor([3, 2])
    sizes = dict(vocabulary=50, width=16, heads=2, layers=1)
    model = heedful.build("laptop-translator", **sizes).eval()
    names = tap_names(model)
    torch.set_grad_enabled(False)

    def whole(model, *inputs):  # fullgraph: a single graph break would be an error
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        assert torch.equal(compiled(*inputs), model(*inputs))
        return compiled

    for other in ("laptop-reader", "laptop-writer"):
        whole(heedful.build(other, **sizes, positions="rotary").eval(), source)
    whole(model, source, target, lengths)
    compiled = torch.compile(model, backend="eager")  # listeners run uncompiled: they break the graph
    explained = torch._dynamo.explain(model)(source, target, lengths)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0), explained.break_reasons
    plain = model(source, target, lengths)

    assert tap_names(compiled) == names
    with record(model, *names) as expected:
        model(source, target, lengths)
    for _ in range(2):
        with record(compiled, *names) as seen:
            watched = compiled(source, target, lengths)
        assert torch.equal(watched, plain)
        assert sorted(seen) == sorted(names)
        assert all(torch.equal(seen[name], expected[name]) for name in names)

    off = {"encoder.0.attention.heads": lambda heads, _: torch.zeros_like(heads)}
    with edit(model, off), edit(compiled, off):
        assert torch.equal(compiled(source, target, lengths), model(source, target, lengths))
        assert not torch.equal(compiled(source, target, lengths), plain)
    assert torch.equal(compiled(source, target, lengths), plain)
    print("all held")
"""


@pytest.mark.slow
def test_a_compiled_model_is_one_graph_and_can_still_be_recorded(fork_server: Any, tmp_path: Path) -> None:
    """In a separate process: torch.compile cannot trace through the test suite's shape checks."""
    done = fork_server.run_script(dedent(COMPILED), folder=tmp_path)
    assert done.code == 0, done.output
    assert "all held" in done.output.splitlines()
