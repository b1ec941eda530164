"""One kernel for the attention of a new token equals what it stands for."""

from __future__ import annotations

import pytest
import torch

from heedful.layers.attention import attention
from heedful.layers.kv_cache import KVCache, StaticCacheIndex

pytest.importorskip("triton")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "groups", "width"), [(4, 4, 64), (6, 2, 32), (1, 1, 256)])
@pytest.mark.parametrize("end", [0, 1, 127, 128, 300])
@pytest.mark.parametrize("moved", [True, False])
def test_it_writes_the_new_token_and_reads_every_row_s_own_past(
    kind: torch.dtype, heads: int, groups: int, width: int, end: int, moved: bool
) -> None:
    compare(torch.device("cuda"), kind, heads, groups, width, end, moved)


def compare(
    device: torch.device, kind: torch.dtype, heads: int, groups: int, width: int, end: int, moved: bool
) -> None:
    from heedful.kernels.decode_attention import decode_attention

    rows, places = 5, 320
    generator = torch.Generator().manual_seed(end)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, kind)

    state = KVCache(rows, 1, device=device)
    layer = state.layers[0]
    own = torch.arange(rows, dtype=torch.int32)[:, None]
    origin = (
        torch.randint(rows, (rows, places), generator=generator, dtype=torch.int32) if moved else own.repeat(1, places)
    )
    origin[:, end] = own[:, 0]
    fixed = StaticCacheIndex(torch.tensor([end], device=device), origin.to(device), moved)
    query, key, value = drawn(rows, heads, 1, width), drawn(rows, groups, 1, width), drawn(rows, groups, 1, width)
    held = drawn(rows, groups, places, width), drawn(rows, groups, places, width)

    layer.keys, layer.values = (part.clone() for part in held)
    found = decode_attention(query, key, value, layer, fixed, width**-0.5)
    written = layer.keys, layer.values

    layer.keys, layer.values = (part.clone() for part in held)
    keys, values = (part.repeat_interleave(heads // groups, 1) for part in fixed.append(layer, key, value))
    past = slice(0, end + 1)
    expected = attention(query.double(), keys[:, :, past].double(), values[:, :, past].double())
    assert all(torch.equal(a, b) for a, b in zip(written, (layer.keys, layer.values), strict=True))
    assert (found.double() - expected).abs().max() < (1e-5 if kind == torch.float32 else 2e-2)
