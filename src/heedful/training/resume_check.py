"""Proof that an interruption changes nothing: with the user's own recipe and data, and real kills."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from heedful.device import describe_machine
from heedful.errors import HeedfulError
from heedful.files import MANIFEST, write_atomic
from heedful.training.checkpoint.format import list_checkpoints, shard_file_name
from heedful.training.checkpoint.run_manifest import STATE_FOLDER

KILLS = (12, 25)
NEVER = 0
HEADING = "## Resuming, proved"
OURS = "heedful.errors.HeedfulError: "


@dataclass(frozen=True)
class ResumeCheck:
    """One stretch walked twice, straight and with kills."""

    steps: int
    straight: str
    """SHA-256 of weights, optimizer and averages at the end."""
    broken: str
    tensors: int
    different: int
    """Tensors that differ in any bit."""
    distance: float
    """The largest difference of any weight."""
    machine: str
    vague: tuple[str, ...]
    """Operations that have no deterministic form on this device."""

    def __str__(self) -> str:
        walked = (
            f"{self.steps} steps of this recipe on this data, straight, and again with the process killed (SIGKILL)"
        )
        kills = f"{walked} after steps {' and '.join(map(str, KILLS))} and resumed"
        if not self.different:
            found = f"all {self.tensors} tensors of weights, optimizer and averages are the same, bit for bit"
        else:
            found = f"NOT identical: {self.different} of {self.tensors} tensors differ, weights by {self.distance:.2g}"
        vague = f"; without a deterministic form there: {', '.join(self.vague)}" if self.vague else ""
        sums = f"straight  SHA-256 {self.straight}\nresumed   SHA-256 {self.broken}"
        return f"{kills}: {found}. On {self.machine}{vague}.\n\n{sums}"


def check_resume(folder: Path, device: torch.device) -> ResumeCheck:
    """Walk the stretch twice; write what came of it into the card, and give it back."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="proof-") as room:
        straight, broken = Path(room) / "straight", Path(room) / "broken"
        said = _walk(folder, straight, device, NEVER)
        for kill_after in (*KILLS, NEVER):
            _walk(folder, broken, device, kill_after)
        proof = compare(straight, broken, describe(device), tuple(sorted(set(re.findall(VAGUE, said)))))
    card = folder / "card.md"
    before = card.read_text(encoding="utf-8").partition(HEADING)[0].rstrip() if card.exists() else ""
    walked, _, sums = str(proof).partition("\n\n")
    write_atomic(card, f"{before}\n\n{HEADING}\n\n{walked}\n\n```\n{sums}\n```\n".lstrip())
    return proof


VAGUE = r"(\S+) does not have a deterministic implementation"


def describe(device: torch.device) -> str:
    return describe_machine(device) + (", deterministic mode" if device.type == "cuda" else "")


def _walk(source: Path, copy: Path, device: torch.device, kill_after: int) -> str:
    """The stretch in a process of its own; gives back what it said."""
    command = [
        sys.executable,
        "-m",
        "heedful.training.resume_check_worker",
        str(source),
        str(copy),
        str(device),
        str(kill_after),
    ]
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads()), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    done = subprocess.run(command, env={**os.environ, **threads}, capture_output=True, text=True, check=False)
    if done.returncode != (-signal.SIGKILL if kill_after else 0):
        why = done.stderr.strip().splitlines()[-1:] or [f"it ended with {done.returncode}"]
        raise HeedfulError(f"resuming could not be proved: a stretch failed: {why[0].removeprefix(OURS)}")
    return done.stderr


def compare(straight: Path, broken: Path, machine: str, vague: tuple[str, ...]) -> ResumeCheck:
    """Two walks' last checkpoints."""
    ends = [list_checkpoints(folder / STATE_FOLDER)[0] for folder in (straight, broken)]
    state = shard_file_name(0, 1)
    one, other = (json.loads((end / MANIFEST).read_text(encoding="utf-8"))[state]["sha256"] for end in ends)
    a, b = (load_file(end / state) for end in ends)
    different = [name for name in a.keys() | b.keys() if not _same(a.get(name), b.get(name))]
    apart = [float((a[name] - b[name]).abs().max()) for name in different if name.startswith("model.")]
    steps = int(ends[0].name.removeprefix("step-"))
    return ResumeCheck(steps, one, other, len(a), len(different), max(apart, default=0.0), machine, vague)


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and torch.equal(a, b)
