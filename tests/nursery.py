"""Starts the real command in processes of its own, quickly: heedful is imported once, then forked.

One request a line on standard input, one answer a line on standard output:
    {"arguments", "folder", "log", "output", "kill_at", "limits", "before"} → {"pid"};   {"wait": pid} → {"code"}
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import resource
import signal
import sys
import traceback
from typing import Any

# Imported here, once, because a process imports them sooner or later: torch's optimizers need its compiler.
import matplotlib.figure
import sacrebleu.metrics.bleu
import torch._dynamo

import heedful.cli.commands
import heedful.training.run
from heedful.cli.app import main

assert all((heedful.cli.commands, heedful.training.run, matplotlib.figure, sacrebleu.metrics.bleu, torch._dynamo))

CALLS = ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir", "open")


def answer(facts: dict[str, Any]) -> None:
    print(json.dumps(facts), flush=True)


def die_at(number: int) -> None:
    """SIGKILL on the n-th call that changes files: no moment inside a save is out of reach."""
    left = [number]

    def doomed(call: Any) -> Any:
        def wrapper(*arguments: Any, **names: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **names)

        return wrapper

    for name in CALLS:
        setattr(os, name, doomed(getattr(os, name)))


def child(request: dict[str, Any]) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born deaf to it
    os.chdir(request["folder"])
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 2)
    same = request["output"] == request["log"]
    os.dup2(log if same else os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name, limit in request["limits"].items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    if request["kill_at"]:
        die_at(request["kill_at"])
    sys.argv = ["heedful", *request["arguments"]]
    code: Any = 1
    try:
        exec(request["before"], {"__name__": "__main__"})
        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:  # taking an interpreter of this size apart would take two seconds
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    gc.collect()
    gc.freeze()  # or else each child would look through all that was imported, and have its pages copied
    answer({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer({"code": os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])})
        elif (pid := os.fork()) == 0:
            child(request)
        else:
            answer({"pid": pid})


if __name__ == "__main__":
    serve()
