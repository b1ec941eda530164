"""Threads of a CPU that torch and CTranslate2 both want."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache

from heedful.interop.ctranslate2_export import Quantisation
from heedful.models.model_config import TransformerConfig

MULTITHREADED_WEIGHTS: dict[Quantisation, int] = {"float32": 3_000_000, "int8": 64_000_000}
"""Weights a step reads; with fewer, a single text is written on one thread: sharing would take longer than it saves."""
WIDE_MODEL = 384
"""The same where threads have to be woken up for every piece of work: only wider models are worth it."""
ROWS_PER_THREAD = 8
"""Rows that are worth a thread of their own to torch: see `abreast`."""
CTRANSLATE2_THREADS = 4
"""Threads CTranslate2 would take by itself."""
OMP_PAUSE_HARD = 2
"""omp_pause_hard: threads end, and are made again when next wanted."""


def threads_per_text(config: TransformerConfig, threads: int, quantisation: Quantisation) -> int:
    """How many of CTranslate2's threads should work on one text together. Torch's own make way for them."""
    if threads == 1 or weights_per_step(config) < MULTITHREADED_WEIGHTS[quantisation]:
        return 1
    spinning = release_torch_threads()
    if config.width >= WIDE_MODEL:
        return threads
    return min(threads, CTRANSLATE2_THREADS) if spinning else 1


def weights_per_step(config: TransformerConfig) -> int:
    """About how many weights are read for the next token: the decoder's matrices and the output table."""
    settings = config.resolved()
    attention = 6 if config.family == "encoder_decoder" else 4  # of what was read, keys and values are there already
    inner: int = (3 if config.gated else 2) * settings["feed_forward"]
    block = config.width * (attention * config.width + inner)
    layers: int = settings["decoder_layers"] or config.layers
    return layers * block + config.width * (config.target_vocabulary or config.vocabulary)


def release_torch_threads() -> bool:
    """End the threads that torch keeps waiting for its next parallel work, and say whether that could be done.

    Both libraries share one OpenMP runtime, torch's. GNU's counts the threads of all teams, and as soon as they are
    more than the cores, a thread that waits for the others sleeps instead of spinning: to wake it takes longer than
    the work of a small step. With torch's two threads idle, CTranslate2 wrote 450 tokens a second on two cores, and
    2,250 without them. Only the thread that owns a team can end it; torch's belongs to the main thread, as a rule.
    """
    end = _end_own_team()
    if end is None or threading.current_thread() is not threading.main_thread():
        return False
    return end(OMP_PAUSE_HARD) == 0


@cache
def _end_own_team() -> Callable[[int], int] | None:
    """GNU's way to end a team; Intel's and LLVM's runtimes neither count threads so nor end a single team."""
    try:
        runtime = ctypes.CDLL(None)  # whatever is loaded for all: that is where both libraries find theirs
        found: Callable[[int], int] | None = runtime.omp_pause_resource_all
        return None if hasattr(runtime, "__kmpc_fork_call") else found
    except (AttributeError, OSError, TypeError):  # an old runtime, another system
        return None
