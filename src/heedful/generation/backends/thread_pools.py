"""Thread pools of CTranslate2 and torch, which share one OpenMP runtime."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache

from heedful.interop.ctranslate2_export import Quantization
from heedful.models.model_config import TransformerConfig

MULTITHREADED_WEIGHTS: dict[Quantization, int] = {"float32": 3_000_000, "int8": 64_000_000}
"""Weights per step from which several threads share one text; below, synchronization costs more than it saves."""
WIDE_MODEL = 384
"""Width from which several threads pay even if they must be woken up for every piece of work."""
ROWS_PER_THREAD = 8
"""Minimum number of rows per thread (`row_parallel`)."""
CTRANSLATE2_THREADS = 4
"""CTranslate2's own default."""
OMP_PAUSE_HARD = 2
"""omp_pause_resource_all: end the threads; they are created again when needed."""


def threads_per_text(config: TransformerConfig, threads: int, quantization: Quantization) -> int:
    """Number of CTranslate2 threads that share one text. If more than one, ends torch's idle threads."""
    if threads == 1 or weights_per_step(config) < MULTITHREADED_WEIGHTS[quantization]:
        return 1
    released = release_torch_threads()
    if config.width >= WIDE_MODEL:
        return threads
    return min(threads, CTRANSLATE2_THREADS) if released else 1


def weights_per_step(config: TransformerConfig) -> int:
    """Approximate number of weights that a decode step reads: the decoder's matrices and the output projection."""
    settings = config.resolved()
    attention = 6 if config.family == "encoder_decoder" else 4  # keys and values of the source are projected once
    inner: int = (3 if config.gated else 2) * settings["feed_forward"]
    block = config.width * (attention * config.width + inner)
    layers: int = settings["decoder_layers"] or config.layers
    return layers * block + config.width * (config.target_vocabulary or config.vocabulary)


def release_torch_threads() -> bool:
    """End the OpenMP threads that torch keeps waiting for work; return whether that was possible.

    Both libraries share torch's OpenMP runtime. GNU's counts the threads of all teams, and when there are more than
    cores, a waiting thread sleeps instead of spinning: waking it takes longer than a small step. With torch's two
    threads idle, CTranslate2 generated 450 tokens/s on two cores, and 2,250 without them. Only the thread that owns a
    team can end it; torch's belongs to the main thread, as a rule.
    """
    pause = _omp_pause()
    if pause is None or threading.current_thread() is not threading.main_thread():
        return False
    return pause(OMP_PAUSE_HARD) == 0


@cache
def _omp_pause() -> Callable[[int], int] | None:
    """GNU's omp_pause_resource_all; Intel's and LLVM's runtimes neither count threads so nor end a single team."""
    try:
        runtime = ctypes.CDLL(None)  # symbols loaded globally: where both libraries find their runtime
        pause: Callable[[int], int] | None = runtime.omp_pause_resource_all
        return None if hasattr(runtime, "__kmpc_fork_call") else pause
    except (AttributeError, OSError, TypeError):  # an old runtime, another system
        return None
