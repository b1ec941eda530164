"""Our layers against `torch.nn`'s, with copied weights: same outputs, same gradients, in float64 to 1e-9."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heedful import TransformerConfig, build, record
from heedful.layers.attention import CrossAttention, SelfAttention
from heedful.layers.block import Block
from heedful.layers.feed_forward import FeedForward
from heedful.layers.masks import UNMASKED, causal, padding
from heedful.layers.norms import layer_norm, rms_norm
from heedful.layers.residual import Residual

BATCH, TOKENS, SOURCE, WIDTH, HEADS, HIDDEN, LAYERS, VOCABULARY = 3, 6, 8, 12, 3, 20, 2, 30
LENGTHS, SOURCE_LENGTHS = torch.tensor([6, 4, 1]), torch.tensor([8, 5, 2])

RENAMED = {
    "self_attn.in_proj_": "attention.query_key_value.",
    "self_attn.out_proj.": "attention.output.",
    "multihead_attn.out_proj.": "cross.output.",
    "linear1.": "feed_forward.inward.",
    "linear2.": "feed_forward.outward.",
    "norm1.": "residual.0.norm.",
    "norm2.": "residual.1.norm.",
    "norm3.": "residual.2.norm.",
    "layers.": "blocks.",
}
each_order = pytest.mark.parametrize("order", ["post", "pre"])
each_activation = pytest.mark.parametrize("activation", ["relu", "gelu"])
# A stack says that it will not take its fast path; nn.Transformer gives no way to tell it not to try.
slow_path = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True, but:UserWarning")


def in_our_names(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """torch.nn's weights, or their gradients, under our names.

    Both keep W_q, W_k, W_v in one matrix; only our cross-attention, which reads two texts, keeps W_q apart.
    """
    ours = {}
    for name, weight in theirs.items():
        if "multihead_attn.in_proj_" in name:
            query, key_value = weight.split([WIDTH, 2 * WIDTH])
            ours[renamed(name.replace("multihead_attn.in_proj_", "cross.query."))] = query
            ours[renamed(name.replace("multihead_attn.in_proj_", "cross.key_value."))] = key_value
        else:
            ours[renamed(name)] = weight
    return ours


def renamed(name: str) -> str:
    for theirs, ours in RENAMED.items():
        name = name.replace(theirs, ours)
    return name


def shaken(module: Any) -> Any:
    """In float64, with every weight moved: fresh biases are 0 and gains 1, which would hide a mistake."""
    module = module.double().eval()
    for weight in module.parameters():
        weight.data.add_(torch.randn_like(weight), alpha=0.2)
    return module


def with_weights_of(theirs: nn.Module, ours: Any) -> Any:
    ours.double().eval().load_state_dict(in_our_names(theirs.state_dict()))
    return ours


def vectors(tokens: int) -> tuple[Tensor, Tensor]:
    """The same vectors twice, so that each side collects gradients of its own."""
    x = torch.randn(BATCH, tokens, WIDTH, dtype=torch.float64)
    return x.clone().requires_grad_(), x.clone().requires_grad_()


def backward(ours: Tensor, theirs: Tensor) -> None:
    """From one gradient that differs from place to place."""
    gradient = torch.randn_like(theirs)
    ours.backward(gradient)
    theirs.backward(gradient)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    found = {name: weight.grad for name, weight in module.named_parameters()}
    return {name: gradient for name, gradient in found.items() if gradient is not None}


def assert_same(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def assert_same_gradients(ours: nn.Module, theirs: nn.Module) -> None:
    assert len(gradients(ours)) == len(list(ours.parameters()))
    assert_same(gradients(ours), in_our_names(gradients(theirs)))


def hidden_keys(lengths: Tensor, tokens: int) -> Tensor:
    """Padding as torch.nn says it: True = do not attend."""
    return torch.arange(tokens) >= lengths[:, None]


def later_keys() -> Tensor:
    return torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("in_order", [False, True])
def test_self_attention_equals_nn_multihead_attention(padded: bool, in_order: bool) -> None:
    theirs = nn.ModuleDict({"self_attn": shaken(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))})
    ours = with_weights_of(theirs, nn.ModuleDict({"attention": SelfAttention(WIDTH, HEADS)}))
    x, same_x = vectors(TOKENS)
    mask = (padding(LENGTHS, TOKENS) if padded else UNMASKED) & (causal() if in_order else UNMASKED)
    with record(ours, "attention.weights") as seen:
        output = ours["attention"](x, mask)
    expected, weights = theirs["self_attn"](
        same_x,
        same_x,
        same_x,
        key_padding_mask=hidden_keys(LENGTHS, TOKENS) if padded else None,
        attn_mask=later_keys() if in_order else None,
        average_attn_weights=False,
    )
    assert_same(output, expected)
    assert_same(seen["attention.weights"], weights)
    backward(output, expected)
    assert_same(x.grad, same_x.grad)
    assert_same_gradients(ours, theirs)


@pytest.mark.parametrize("padded", [False, True])
def test_cross_attention_equals_nn_multihead_attention(padded: bool) -> None:
    theirs = nn.ModuleDict({"multihead_attn": shaken(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))})
    ours = with_weights_of(theirs, nn.ModuleDict({"cross": CrossAttention(WIDTH, HEADS)}))
    (x, same_x), (memory, same_memory) = vectors(TOKENS), vectors(SOURCE)
    with record(ours, "cross.weights") as seen:
        output = ours["cross"](x, memory, padding(SOURCE_LENGTHS, SOURCE) if padded else None)
    expected, weights = theirs["multihead_attn"](
        same_x,
        same_memory,
        same_memory,
        key_padding_mask=hidden_keys(SOURCE_LENGTHS, SOURCE) if padded else None,
        average_attn_weights=False,
    )
    assert_same(output, expected)
    assert_same(seen["cross.weights"], weights)
    backward(output, expected)
    assert_same((x.grad, memory.grad), (same_x.grad, same_memory.grad))
    assert_same_gradients(ours, theirs)


def our_block(order: Any, activation: Any, *, cross: bool = False) -> Block:
    return Block(
        SelfAttention(WIDTH, HEADS),
        FeedForward(WIDTH, HIDDEN, activation=activation),
        lambda: Residual(WIDTH, order=order),
        CrossAttention(WIDTH, HEADS) if cross else None,
    )


def their_settings(order: str, activation: str = "relu") -> dict[str, Any]:
    return {
        "dim_feedforward": HIDDEN,
        "dropout": 0.0,
        "activation": activation,
        "batch_first": True,
        "norm_first": order == "pre",
    }


@each_order
@each_activation
def test_a_block_equals_nn_transformer_encoder_layer(order: str, activation: str) -> None:
    theirs = shaken(nn.TransformerEncoderLayer(WIDTH, HEADS, **their_settings(order, activation)))
    ours = with_weights_of(theirs, our_block(order, activation))
    x, same_x = vectors(TOKENS)
    output = ours(x, padding(LENGTHS, TOKENS))
    expected = theirs(same_x, src_key_padding_mask=hidden_keys(LENGTHS, TOKENS))
    assert_same(output, expected)
    backward(output, expected)
    assert_same(x.grad, same_x.grad)
    assert_same_gradients(ours, theirs)


@each_order
@each_activation
def test_a_block_with_cross_attention_equals_nn_transformer_decoder_layer(order: str, activation: str) -> None:
    theirs = shaken(nn.TransformerDecoderLayer(WIDTH, HEADS, **their_settings(order, activation)))
    ours = with_weights_of(theirs, our_block(order, activation, cross=True))
    (x, same_x), (memory, same_memory) = vectors(TOKENS), vectors(SOURCE)
    output = ours(x, causal(), memory=memory, memory_mask=padding(SOURCE_LENGTHS, SOURCE))
    expected = theirs(
        same_x,
        same_memory,
        tgt_mask=later_keys(),
        memory_key_padding_mask=hidden_keys(SOURCE_LENGTHS, SOURCE),
    )
    assert_same(output, expected)
    backward(output, expected)
    assert_same((x.grad, memory.grad), (same_x.grad, same_memory.grad))
    assert_same_gradients(ours, theirs)


def our_config(family: str, order: str, **settings: Any) -> TransformerConfig:
    """A whole model whose stacks read the bare token vectors, as those of torch.nn do."""
    return TransformerConfig(
        family=family,
        norm_order=order,
        vocabulary=VOCABULARY,
        width=WIDTH,
        heads=HEADS,
        layers=LAYERS,
        feed_forward=HIDDEN,
        positions="none",
        embedding_scale=False,
        **settings,
    )


def tokens(count: int) -> Tensor:
    return torch.randint(VOCABULARY, (BATCH, count))


@slow_path
@each_order
def test_encoder_equals_nn_transformer_encoder(order: str) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, **their_settings(order))
    norm = nn.LayerNorm(WIDTH) if order == "pre" else None
    theirs = shaken(
        nn.ModuleDict(
            {"table": nn.Embedding(VOCABULARY, WIDTH), "encoder": nn.TransformerEncoder(layer, LAYERS, norm=norm)}
        )
    )
    ours = with_weights_of(theirs, build(our_config("encoder", order)))
    text = tokens(TOKENS)
    output = ours(text, LENGTHS)
    expected = theirs["encoder"](theirs["table"](text), src_key_padding_mask=hidden_keys(LENGTHS, TOKENS))
    assert_same(output, expected)
    backward(output, expected)
    assert_same_gradients(ours, theirs)


@slow_path
@each_order
def test_decoder_equals_nn_transformer_encoder_with_a_causal_mask(order: str) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, **their_settings(order))
    norm = nn.LayerNorm(WIDTH) if order == "pre" else None
    theirs = shaken(
        nn.ModuleDict(
            {"table": nn.Embedding(VOCABULARY, WIDTH), "decoder": nn.TransformerEncoder(layer, LAYERS, norm=norm)}
        )
    )
    ours = with_weights_of(theirs, build(our_config("decoder", order)))
    text = tokens(TOKENS)
    output = ours(text)
    expected = theirs["decoder"](theirs["table"](text), mask=later_keys()) @ theirs["table"].weight.T
    assert_same(output, expected)
    backward(output, expected)
    assert_same_gradients(ours, theirs)


class TheirTransformer(nn.Module):
    """`nn.Transformer` with the table and the tied output that it leaves to the user."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        whole = nn.Transformer(
            WIDTH, HEADS, num_encoder_layers=LAYERS, num_decoder_layers=LAYERS + 1, **their_settings(order)
        )
        self.encoder, self.decoder = whole.encoder, whole.decoder
        self.whole = [whole]  # in a list: its weights have their names already

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        hidden = hidden_keys(SOURCE_LENGTHS, SOURCE)
        states = self.whole[0](
            self.table(source),
            self.table(target),
            tgt_mask=later_keys(),
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
        )
        return states @ self.table.weight.T


@slow_path
@each_order
def test_encoder_decoder_with_a_final_norm_equals_nn_transformer(order: str) -> None:
    """`nn.Transformer` ends both stacks with a norm even where every block has just done so."""
    theirs = shaken(TheirTransformer(order))
    ours = with_weights_of(
        theirs, build(our_config("encoder_decoder", order, decoder_layers=LAYERS + 1, final_norm=True))
    )
    source, target = tokens(SOURCE), tokens(TOKENS)
    output, expected = ours(source, target, SOURCE_LENGTHS), theirs(source, target)
    assert_same(output, expected)
    backward(output, expected)
    assert_same_gradients(ours, theirs)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-5, 0.1])
def test_layer_norm_equals_nn_layer_norm(epsilon: float) -> None:
    theirs = shaken(nn.LayerNorm(WIDTH, eps=epsilon))
    gain, bias = (weight.detach().clone().requires_grad_() for weight in (theirs.weight, theirs.bias))
    x, same_x = vectors(TOKENS)
    output, expected = layer_norm(x, gain, bias, epsilon), theirs(same_x)
    assert_same(output, expected)
    backward(output, expected)
    assert_same((x.grad, gain.grad, bias.grad), (same_x.grad, theirs.weight.grad, theirs.bias.grad))


@pytest.mark.parametrize("epsilon", [1e-12, 1e-5, 0.1])
def test_rms_norm_equals_nn_rms_norm(epsilon: float) -> None:
    theirs = shaken(nn.RMSNorm(WIDTH, eps=epsilon))
    gain = theirs.weight.detach().clone().requires_grad_()
    x, same_x = vectors(TOKENS)
    output, expected = rms_norm(x, gain, epsilon), theirs(same_x)
    assert_same(output, expected)
    backward(output, expected)
    assert_same((x.grad, gain.grad), (same_x.grad, theirs.weight.grad))
