"""fused_decode_step equals running the blocks one after another over an ordinary KV cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import heedful
from heedful.kernels.fused_decode_step import fused_decode_step
from heedful.layers.kv_cache import KVCache, StaticCacheIndex
from heedful.layers.positions import rotation

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "llama": ("llama-135m", {"key_value_heads": 1}),
    "pre-norm encoder-decoder": ("laptop-translator", {}),
    "post-norm encoder-decoder": ("paper-base", {}),
}
ROWS, PAST, POSITIONS = 2, 3, 4


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_fused_step_equals_the_blocks(name: str, device: torch.device) -> None:
    preset, settings = ARCHITECTURES[name]
    size = {"vocabulary": 20, "width": 32, "heads": 2, "layers": 2, "feed_forward": 16}
    model = heedful.build(preset, **size, **settings).eval().to(device)
    blocks, reads_source = model.decoder.blocks, hasattr(model, "encode")
    cache = model.start(torch.randint(6, 20, (ROWS, 5), device=device)) if reads_source else model.start(ROWS)
    x = torch.randn(ROWS, 1, 32, device=device)
    with torch.inference_mode():
        model.extend(torch.randint(6, 20, (ROWS, PAST), device=device), cache)
        static = static_copy(cache)
        angles = rotation(torch.tensor([[PAST]], device=device), 16) if name == "llama" else None
        fused = fused_decode_step(blocks, x, static, angles)
        for block, layer in zip(blocks, cache.layers, strict=True):
            x = block(x, None, rotation=angles, cache=layer, memory=layer.memory, memory_mask=cache.memory_mask)
    torch.testing.assert_close(fused, x, rtol=1e-4, atol=1e-4)
    for ordinary, layer in zip(cache.layers, static.layers, strict=True):
        assert ordinary.keys is not None
        assert layer.keys is not None
        torch.testing.assert_close(layer.keys[:, :, : PAST + 1], ordinary.keys[:, :, : PAST + 1], rtol=1e-4, atol=1e-4)


def static_copy(cache: KVCache) -> KVCache:
    """The same keys and values in a static cache, whose positions the device knows."""
    device = cache.lengths.device
    static = KVCache(ROWS, len(cache.layers), device=device)
    cache_rows = torch.arange(ROWS, dtype=torch.int32, device=device)[:, None].repeat(1, POSITIONS)
    static.static_index = StaticCacheIndex(torch.tensor([PAST], device=device), cache_rows, reordered=False)
    static.memory_mask = cache.memory_mask
    for ordinary, layer in zip(cache.layers, static.layers, strict=True):
        assert ordinary.keys is not None
        assert ordinary.values is not None
        layer.keys, layer.values = (
            torch.nn.functional.pad(tensor[:, :, :PAST], (0, 0, 0, POSITIONS - PAST))
            for tensor in (ordinary.keys, ordinary.values)
        )
        layer.memory = ordinary.memory
    return static
