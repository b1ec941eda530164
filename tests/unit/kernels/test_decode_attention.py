"""decode_attention equals StaticCacheIndex.append followed by the reference attention."""

from __future__ import annotations

import pytest
import torch

from heedful.kernels.decode_attention import decode_attention
from heedful.layers.attention import attention
from heedful.layers.kv_cache import KVCache, StaticCacheIndex


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "groups", "width"), [(2, 2, 64), (4, 2, 16), (1, 1, 256)])
@pytest.mark.parametrize("end", [0, 127, 300])
@pytest.mark.parametrize("reordered", [True, False])
def test_new_token_is_cached_and_attends_to_its_row_s_past(
    dtype: torch.dtype, heads: int, groups: int, width: int, end: int, reordered: bool, device: torch.device
) -> None:
    rows, positions = 3, 320
    generator = torch.Generator().manual_seed(end)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    layer = KVCache(rows, 1, device=device).layers[0]
    cache_rows = torch.arange(rows, dtype=torch.int32)[:, None].repeat(1, positions)
    if reordered:
        cache_rows = torch.randint(rows, (rows, positions), generator=generator, dtype=torch.int32)
        cache_rows[:, end] = torch.arange(rows)
    index = StaticCacheIndex(torch.tensor([end], device=device), cache_rows.to(device), reordered)
    query, key, value = random(rows, heads, 1, width), random(rows, groups, 1, width), random(rows, groups, 1, width)
    stored = random(rows, groups, positions, width), random(rows, groups, positions, width)

    layer.keys, layer.values = (tensor.clone() for tensor in stored)
    output = decode_attention(query, key, value, layer, index, width**-0.5)
    written = layer.keys, layer.values

    layer.keys, layer.values = (tensor.clone() for tensor in stored)
    keys, values = (tensor.repeat_interleave(heads // groups, 1) for tensor in index.append(layer, key, value))
    past = slice(0, end + 1)
    expected = attention(query.double(), keys[:, :, past].double(), values[:, :, past].double())
    assert all(torch.equal(a, b) for a, b in zip(written, (layer.keys, layer.values), strict=True))
    assert (output.double() - expected).abs().max() < (1e-5 if dtype == torch.float32 else 2e-2)
