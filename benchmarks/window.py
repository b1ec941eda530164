"""Attention within a window, in blocks, against full attention: time and memory of one head of 64 on a CPU.

python benchmarks/window.py full 6000 [--backward]
python benchmarks/window.py 64 6000 [--backward]

One case a process, so that peak memory is its own. Processor time of one thread, the best of five.
"""

from __future__ import annotations

import os
import sys
import time

os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", "65536")  # freed tensors return to the system at once

import torch

from heedful.device import memory_in_use, peak_memory, reset_peak_memory
from heedful.layers.attention import fused_attention
from heedful.layers.masks import Mask, window

torch.set_num_threads(1)
torch.manual_seed(0)
size, tokens, backward = sys.argv[1], int(sys.argv[2]), "--backward" in sys.argv
query, key, value = (torch.randn(1, 1, tokens, 64, requires_grad=backward) for _ in range(3))
mask = Mask() if size == "full" else window(int(size))


def step() -> None:
    output = fused_attention(query, key, value, mask)
    if backward:
        output.sum().backward()


step()
cpu = torch.device("cpu")
reset_peak_memory(cpu)
before, seconds = memory_in_use(cpu), []
for _ in range(5):
    start = time.process_time()
    step()
    seconds.append(time.process_time() - start)
memory = (peak_memory(cpu) - before) / 2**20
print(f"window {size}, {tokens} tokens: {min(seconds) * 1e3:.0f} ms, {memory:.1f} MiB")
