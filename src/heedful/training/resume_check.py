"""The resume check: train a few steps of the user's recipe uninterrupted and killed, and compare the bits."""

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

KILL_STEPS = (12, 25)
NO_KILL = 0
HEADING = "## Resume check"
ERROR_PREFIX = "heedful.errors.HeedfulError: "
NONDETERMINISTIC = r"(\S+) does not have a deterministic implementation"
"""PyTorch's warning, from which the names of operations are taken."""


@dataclass(frozen=True)
class ResumeCheck:
    """A comparison of an uninterrupted run with one that was killed and resumed."""

    steps: int
    uninterrupted: str
    """SHA-256 of weights, optimizer state and averages at the end."""
    resumed: str
    tensors: int
    different: int
    """Tensors that differ in any bit."""
    max_difference: float
    """The largest absolute difference of any weight."""
    machine: str
    nondeterministic: tuple[str, ...]
    """Operations without a deterministic implementation on this device."""

    def __str__(self) -> str:
        kills = " and ".join(map(str, KILL_STEPS))
        setup = (
            f"{self.steps} steps of this recipe on this data, uninterrupted, and again killed (SIGKILL) after steps "
            f"{kills} and resumed"
        )
        if not self.different:
            result = f"all {self.tensors} tensors of weights, optimizer and averages are identical, bit for bit"
        else:
            differing = f"{self.different} of {self.tensors} tensors differ"
            result = f"NOT identical: {differing}, weights by {self.max_difference:.2g}"
        operations = f"; not deterministic there: {', '.join(self.nondeterministic)}" if self.nondeterministic else ""
        checksums = f"uninterrupted  SHA-256 {self.uninterrupted}\nresumed        SHA-256 {self.resumed}"
        return f"{setup}: {result}. On {self.machine}{operations}.\n\n{checksums}"


def check_resume(folder: Path, device: torch.device) -> ResumeCheck:
    """Run the check for the run in `folder` and add its result to the model card."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="resume-check-") as name:
        uninterrupted, resumed = Path(name) / "uninterrupted", Path(name) / "resumed"
        warnings = _train_segment(folder, uninterrupted, device, NO_KILL)
        for kill_after in (*KILL_STEPS, NO_KILL):
            _train_segment(folder, resumed, device, kill_after)
        machine = describe_machine(device) + (", deterministic mode" if device.type == "cuda" else "")
        check = compare(uninterrupted, resumed, machine, tuple(sorted(set(re.findall(NONDETERMINISTIC, warnings)))))
    card = folder / "card.md"
    text = card.read_text(encoding="utf-8").partition(HEADING)[0].rstrip() if card.exists() else ""
    summary, _, checksums = str(check).partition("\n\n")
    write_atomic(card, f"{text}\n\n{HEADING}\n\n{summary}\n\n```\n{checksums}\n```\n".lstrip())
    return check


def _train_segment(source: Path, copy: Path, device: torch.device, kill_after: int) -> str:
    """Train the segment in a subprocess; returns its standard error."""
    worker = "heedful.training.resume_check_worker"
    command = [sys.executable, "-m", worker, str(source), str(copy), str(device), str(kill_after)]
    environment = {"OMP_NUM_THREADS": str(torch.get_num_threads()), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode != (-signal.SIGKILL if kill_after else 0):
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise HeedfulError(f"the resume check failed: {reason[0].removeprefix(ERROR_PREFIX)}")
    return done.stderr


def compare(uninterrupted: Path, resumed: Path, machine: str, nondeterministic: tuple[str, ...]) -> ResumeCheck:
    """Compare the last checkpoints of two run folders."""
    ends = [list_checkpoints(folder / STATE_FOLDER)[0] for folder in (uninterrupted, resumed)]
    state = shard_file_name(0, 1)
    checksums = [json.loads((end / MANIFEST).read_text(encoding="utf-8"))[state]["sha256"] for end in ends]
    a, b = (load_file(end / state) for end in ends)
    different = [name for name in a.keys() | b.keys() if not _equal(a.get(name), b.get(name))]
    differences = [float((a[name] - b[name]).abs().max()) for name in different if name.startswith("model.")]
    return ResumeCheck(
        steps=int(ends[0].name.removeprefix("step-")),
        uninterrupted=checksums[0],
        resumed=checksums[1],
        tensors=len(a),
        different=len(different),
        max_difference=max(differences, default=0.0),
        machine=machine,
        nondeterministic=nondeterministic,
    )


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and torch.equal(a, b)
