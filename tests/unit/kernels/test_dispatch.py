"""Dispatch chooses a kernel for the calls it supports on a GPU, and never for a CPU tensor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from heedful.kernels import dispatch
from heedful.layers.multi_head_attention import SelfAttention


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Fake tensors have a device and a shape without data, so that no GPU is needed."""
    with FakeTensorMode():
        yield request.param


def test_short_attention_serves_half_precision_of_up_to_64_tokens(device: str) -> None:
    def serves(tokens: int = 64, width: int = 64, dtype: torch.dtype = torch.bfloat16, keys: int = 64) -> bool:
        query, key = (torch.empty(2, n, 4, width, dtype=dtype, device=device) for n in (tokens, keys))
        return dispatch.has_short_attention(query, key, key)

    on_gpu = device == "cuda"
    assert serves() == serves(dtype=torch.float16) == serves(1, 16) == on_gpu
    assert not serves(65)
    assert not serves(keys=65)
    assert not serves(width=48)
    assert not serves(dtype=torch.float32)


def test_decode_attention_serves_plain_attention_with_heads_of_one_width(device: str) -> None:
    x = torch.empty(3, 1, 64, device=device)
    assert dispatch.has_decode_attention(SelfAttention(64, 2), x) == (device == "cuda")
    assert not dispatch.has_decode_attention(SelfAttention(64, 2, value_width=16), x)
    assert not dispatch.has_decode_attention(SelfAttention(66, 2), x)
    assert not dispatch.has_decode_attention(SelfAttention(64, 2, score="additive"), x)


def test_fused_decode_step_serves_up_to_4_rows_with_skip_connections(device: str) -> None:
    few, many = torch.empty(4, 1, 64, device=device), torch.empty(5, 1, 64, device=device)
    assert dispatch.has_fused_decode_step(few, skip=True) == (device == "cuda")
    assert not dispatch.has_fused_decode_step(few, skip=False)
    assert not dispatch.has_fused_decode_step(many, skip=True)


def test_gelu_serves_half_precision_under_torch_compile(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.empty(4, device=device, dtype=torch.bfloat16)
    assert not dispatch.has_gelu(x)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert dispatch.has_gelu(x) == (device == "cuda")
    assert not dispatch.has_gelu(x.float())


def test_cross_entropy_serves_vocabularies_from_1024_tokens(device: str) -> None:
    x = torch.empty(4, 8, device=device)
    assert dispatch.has_cross_entropy(x, 1024) == (device == "cuda")
    assert not dispatch.has_cross_entropy(x, 1023)
    assert not dispatch.has_cross_entropy(x.double(), 1024)


def test_argmax_logprob_serves_cuda_tensors(device: str) -> None:
    assert dispatch.has_argmax_logprob(torch.empty(4, 8, device=device)) == (device == "cuda")


def test_a_cpu_run_never_imports_triton_kernels(fork_server: object, tmp_path: object) -> None:
    done = fork_server.run_script(CPU_RUN, folder=tmp_path)  # type: ignore[attr-defined]
    assert done.code == 0, done.output


CPU_RUN = """
import sys, torch, heedful
from heedful.objectives.cross_entropy import token_loss
model = heedful.build("laptop-translator", vocabulary=2000, width=16, heads=1, layers=1, activation="gelu")
tokens = torch.randint(6, 2000, (2, 5))
with torch.autocast("cpu", torch.bfloat16):
    states = model.teacher_forced_states(tokens, tokens)
    token_loss(model.output_projection("next_token", states), tokens).backward()
used = [name for name in sys.modules if name.startswith("heedful.kernels.") and name != "heedful.kernels.dispatch"]
assert not used, used
"""
