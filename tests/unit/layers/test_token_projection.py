"""Queries, keys and values by small networks (A10)."""

from __future__ import annotations

import torch

from heedful.layers.multi_head_attention import CrossAttention, SelfAttention
from heedful.layers.token_projection import TokenNetworks


def test_each_output_is_a_network_of_its_own() -> None:
    networks, x = TokenNetworks(8, [6, 0, 4]), torch.randn(2, 3, 8)
    expected = [
        outward(torch.relu(inward(x))) for inward, outward in zip(networks.inward, networks.outward, strict=True)
    ]
    assert [part.shape[-1] for part in expected] == [6, 4]
    torch.testing.assert_close(networks(x), torch.cat(expected, -1))


def test_queries_keys_and_values_are_functions_of_their_own_token() -> None:
    x, other = torch.randn(1, 4, 8), torch.randn(1, 4, 8)
    other[:, 2] = x[:, 2]
    for projection in (
        SelfAttention(8, 2, projection="network").query_key_value,
        CrossAttention(8, 2, projection="network").key_value,
    ):
        torch.testing.assert_close(projection(x)[:, 2], projection(other)[:, 2])
        assert not torch.allclose(projection(2 * x), 2 * projection(x))
