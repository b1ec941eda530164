"""Fork server: imports heedful once, then forks a child for each command a test runs.

Protocol, one JSON object a line, requests on standard input and responses on standard output:
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

# Imported before forking because every command needs them: torch's optimizers import its compiler.
import matplotlib.figure
import sacrebleu.metrics.bleu
import torch._dynamo

import heedful.cli.commands
import heedful.training.run
from heedful.cli.app import main

assert all((heedful.cli.commands, heedful.training.run, matplotlib.figure, sacrebleu.metrics.bleu, torch._dynamo))

FILE_CALLS = ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir", "open")


def respond(response: dict[str, Any]) -> None:
    print(json.dumps(response), flush=True)


def kill_at_file_call(number: int) -> None:
    """Send SIGKILL to this process at its n-th file-changing system call, so tests reach any moment of a save."""
    calls_left = [number]

    def counted(call: Any) -> Any:
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            calls_left[0] -= 1
            if calls_left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **keywords)

        return wrapper

    for name in FILE_CALLS:
        setattr(os, name, counted(getattr(os, name)))


def run_child(request: dict[str, Any]) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs with SIGINT ignored
    os.chdir(request["folder"])
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 2)
    same = request["output"] == request["log"]
    os.dup2(log if same else os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name, limit in request["limits"].items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    if request["kill_at"]:
        kill_at_file_call(request["kill_at"])
    sys.argv = ["heedful", *request["arguments"]]
    code: Any = 1
    try:
        exec(request["before"], {"__name__": "__main__"})
        main()
        code = 0
    except SystemExit as exit_request:
        code = exit_request.code or 0
    except BaseException:
        traceback.print_exc()
    finally:  # os._exit: a normal interpreter shutdown would take two seconds
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    gc.collect()
    gc.freeze()  # otherwise each child's garbage collector would touch, and so copy, every imported page
    respond({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            respond({"code": os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])})
        elif (pid := os.fork()) == 0:
            run_child(request)
        else:
            respond({"pid": pid})


if __name__ == "__main__":
    serve()
