"""Threads of a CPU that torch and CTranslate2 both want."""

from __future__ import annotations

import ctypes
import threading

HARD = 2
"""omp_pause_hard: threads end, and are made again when next wanted."""


def release_threads() -> bool:
    """End the threads that torch keeps waiting for its next parallel work, and say whether that could be done.

    Both libraries share one OpenMP runtime, torch's. GNU's counts the threads of all teams, and as soon as they are
    more than the cores, a thread that waits for the others sleeps instead of spinning: to wake it takes longer than
    the work of a small step. With torch's two threads idle, CTranslate2 wrote 450 tokens a second on two cores, and
    2,250 without them. Only the thread that owns a team can end it; torch's belongs to the main thread, as a rule.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    try:
        runtime = ctypes.CDLL(None)  # whatever is loaded for all: that is where both libraries find theirs
        if hasattr(runtime, "__kmpc_fork_call"):  # Intel's and LLVM's, which neither counts nor ends single teams
            return False
        return bool(runtime.omp_pause_resource_all(HARD) == 0)
    except (AttributeError, OSError, TypeError):  # an old runtime, another system
        return False
