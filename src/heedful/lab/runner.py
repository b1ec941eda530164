"""Run the trials of a study in parallel processes, and store every finished trial so that runs can resume."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from heedful import __version__
from heedful.data.progress import StartProgress, no_progress
from heedful.device import select_device
from heedful.errors import HeedfulError, UsageError, nearest, require_positive
from heedful.files import write_atomic
from heedful.lab.catalog import load_study, study_source
from heedful.lab.plotting import Dots
from heedful.lab.report import QUICK_SEEDS, SEEDS, write_report
from heedful.lab.study import Study, Trial
from heedful.lab.study_results import Results, TrialResult
from heedful.training.signals import sigterm_raises_exit

TRIALS = "trials"
INVENTED_POINTS = 256
"""Points of the dummy curves that predictions are tested on."""


@dataclass(frozen=True)
class StudyPlan:
    """The plan of a run: the study, its size, seeds and output folder."""

    reference: str
    """The study's name, or the Python file that defines it."""
    quick: bool
    seeds: int
    folder: Path
    device: str
    fingerprint: str
    """Hash of everything a stored trial depends on: the study's file, budget and data, versions, kind of device."""

    @property
    def study(self) -> Study:
        return load_study(self.reference)

    def file(self, index: int, seed: int) -> Path:
        """The file that stores the trial of a variant and a seed."""
        return self.folder / TRIALS / f"{self.study.variants[index].slug}-seed-{seed}.json"


def run_study(
    reference: str,
    out: str | os.PathLike[str] = "lab",
    *,
    quick: bool = False,
    seeds: int | None = None,
    processes: int | None = None,
    device: str = "auto",
    start_progress: StartProgress = no_progress,
) -> Results:
    """Run a study, or the rest of it, and write results.json, report.md and its pictures to OUT/NAME.

    `processes`: number of parallel trials; by default one per core. A script that calls this with more than one needs
    `if __name__ == "__main__":`.
    """
    require_positive(seeds=seeds, processes=processes)
    plan = make_plan(reference, Path(out), quick=quick, seeds=seeds, device=device)
    study = plan.study
    check_predictions(study)
    (plan.folder / TRIALS).mkdir(parents=True, exist_ok=True)
    todo = [
        (index, seed)
        for seed in range(1, plan.seeds + 1)  # all variants of a seed first: an interrupted run is balanced
        for index in range(len(study.variants))
        if read_trial(plan, index, seed) is None
    ]
    workers = 1 if study.exclusive else min(processes or core_count(), max(1, len(todo)))
    with start_progress(f"{study.name}: {len(todo)} trials", len(todo)) as advance:
        if workers == 1:
            with nullcontext() if study.exclusive else single_thread():
                for index, seed in todo:
                    run_trial(plan, index, seed)
                    advance(1)
        else:
            _run_in_processes(plan, todo, workers, advance)
    results = read_results(plan)
    write_report(results, plan.folder, quick=quick, device=select_device(device), reference=reference)
    return results


@contextmanager
def single_thread() -> Iterator[None]:
    """Use one thread inside the block, as in trial processes: small models gain nothing from more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def check_predictions(study: Study) -> None:
    """Evaluate every prediction on dummy numbers, so that a wrong name is an error before hours of training."""
    check_panels(study)
    measured: dict[str, Any] = {measure.key: 0.5 for measure in study.measures}
    measured |= {curve.key: [0.5] * INVENTED_POINTS for curve in study.curves}
    trials = [TrialResult(variant, seed, measured, 0.0) for variant in study.variants for seed in (1, 2)]
    for claim in study.predictions:
        claim.decide(Results(study, tuple(trials)))


def check_panels(study: Study) -> None:
    """UsageError for a panel of an unknown measure or factor, or against a factor without numbers."""
    for panel in study.panels:
        study.find_measure(panel.measure)
        if isinstance(panel, Dots):
            continue
        for name in [*([panel.x] if panel.x else []), *dict(panel.where)]:
            if name not in study.factors:
                raise UsageError(f"study '{study.name}', panel '{panel.measure}': {nearest(name, study.factors)}")
        if panel.x and any(isinstance(value, str) for value in study.factors[panel.x]):
            raise UsageError(f"study '{study.name}', panel '{panel.measure}': {panel.x} has no numbers; use Dots")


def make_plan(reference: str, out: Path, *, quick: bool, seeds: int | None, device: str) -> StudyPlan:
    """The plan of a run; UsageError for an unknown study or a folder that cannot hold its files."""
    study = load_study(reference)
    folder = out / study.name
    if out.is_file() or folder.is_file():
        raise UsageError(f"{folder} cannot be created: a file is in its place; choose another folder with --out")
    kind = select_device(device).type
    content = json.dumps([study.budget_of(quick=quick), study.setup_text, __version__, torch.__version__, kind])
    fingerprint = hashlib.sha256(study_source(reference) + content.encode()).hexdigest()[:16]
    return StudyPlan(reference, quick, seeds or (QUICK_SEEDS if quick else SEEDS), folder, device, fingerprint)


def run_trial(plan: StudyPlan, index: int, seed: int) -> None:
    """Measure one variant under one seed and store the result; another run in the same folder may have done so."""
    if read_trial(plan, index, seed) is not None:
        return
    study = plan.study
    trial = Trial(study.variants[index], seed, study.budget_of(quick=plan.quick), select_device(plan.device))
    clock = time.process_time if trial.device.type == "cpu" else time.perf_counter  # excludes other processes
    start = clock()
    torch.manual_seed(seed)
    try:
        measured = {name: _finite(value) for name, value in study.measure(trial).items()}
    except (HeedfulError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise UsageError(
            f"study '{study.name}', variant {trial.variant}, seed {seed}: measure stops with {type(error).__name__}: "
            f"{error}; --debug shows where"
        ) from error
    declared = {measure.key: measure.optional for measure in (*study.measures, *study.curves)}
    missing = [key for key, optional in declared.items() if key not in measured and not optional]
    if missing or measured.keys() - declared:
        raise UsageError(f"study '{study.name}' measured {sorted(measured)}; it declares {sorted(declared)}")
    stored = {
        "fingerprint": plan.fingerprint, "variant": dict(trial.variant.factors), "seed": seed, "measured": measured,
        "seconds": round(clock() - start, 3),
    }  # fmt: skip
    write_atomic(plan.file(index, seed), json.dumps(stored) + "\n")


def read_trial(plan: StudyPlan, index: int, seed: int) -> TrialResult | None:
    """The stored result of a trial; None if there is none, or if it is of another version of the study."""
    try:
        stored: dict[str, Any] = json.loads(plan.file(index, seed).read_text(encoding="utf-8"))
        if stored["fingerprint"] != plan.fingerprint:
            return None
        return TrialResult(plan.study.variants[index], seed, stored["measured"], stored["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_results(plan: StudyPlan) -> Results:
    """All stored trials of a plan."""
    stored = (
        read_trial(plan, index, seed) for index in range(len(plan.study.variants)) for seed in range(1, plan.seeds + 1)
    )
    return Results(plan.study, tuple(trial for trial in stored if trial is not None))


def core_count() -> int:
    """Number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _finite(value: Any) -> Any:
    """A number or a list of numbers as JSON values: None for non-finite numbers."""
    if isinstance(value, int | float):
        return float(value) if math.isfinite(value) else None
    return [_finite(item) for item in value]


def _run_in_processes(plan: StudyPlan, todo: Sequence[tuple[int, int]], workers: int, advance: Any) -> None:
    """Run trials in processes that store their own results; on an error or signal, end all processes."""
    context, others = multiprocessing.get_context("spawn"), multiprocessing.active_children()
    with sigterm_raises_exit(), ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool:
        try:
            futures = [pool.submit(run_trial, plan, index, seed) for index, seed in todo]
            for future in as_completed(futures):
                future.result()
                advance(1)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                if process not in others:
                    process.terminate()
            raise


def _start_worker() -> None:
    """Use one thread per process, since trials run in parallel. The parent handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process if its parent is killed, which it would not notice otherwise."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "trials run in child processes"
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
