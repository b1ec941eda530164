"""Q7: how do time and memory of attention grow with the length of the text?"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from heedful.device import memory_in_use, peak_memory, release_freed_memory, reset_peak_memory
from heedful.lab.plotting import Lines
from heedful.lab.study import Claim, Measure, Measured, Study, Trial, grid
from heedful.layers.attention import attention, fused_attention
from heedful.layers.masks import window
from heedful.layers.scores import dot

LENGTHS, WIDTH, HEADS, WINDOW = (512, 1024, 2048, 4096), 32, 2, 64
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def by_association(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(Q Kᵀ) V = Q (Kᵀ V): without the softmax the n × n table need not exist."""
    return query @ (key.mT @ value)


KINDS: dict[str, Attend] = {
    "naive": lambda q, k, v: attention(q, k, v),
    "fused": lambda q, k, v: fused_attention(q, k, v),
    "windowed": lambda q, k, v: fused_attention(q, k, v, window(WINDOW)),
    "no softmax": by_association,
}


def run(attend: Attend, inputs: list[Tensor]) -> None:
    """A forward and a backward pass, to the end: reading a number waits for a GPU."""
    gradients = torch.autograd.grad(attend(*inputs).sum(), inputs)
    float(gradients[0].sum())


def cost(attend: Attend, length: int, trial: Trial) -> tuple[float, float]:
    """Milliseconds and MiB of a forward and backward pass: the fastest time, and the peak above what was in use."""
    inputs = [torch.randn(1, HEADS, length, WIDTH, device=trial.device, requires_grad=True) for _ in range(3)]
    run(attend, inputs)
    release_freed_memory()
    before = memory_in_use(trial.device)
    reset_peak_memory(trial.device)
    run(attend, inputs)
    peak, fastest = peak_memory(trial.device), math.inf
    for _ in range(trial.budget["repeats"]):
        start = time.perf_counter()
        run(attend, inputs)
        fastest = min(fastest, time.perf_counter() - start)
    return 1e3 * fastest, max(0, peak - before) / 2**20


def exponent(values: list[float]) -> float:
    """The slope of log value against log length, by least squares, over the two largest doublings."""
    xs, ys = [math.log(length) for length in LENGTHS[-3:]], [math.log(max(value, 1e-3)) for value in values[-3:]]
    x, y = sum(xs) / 3, sum(ys) / 3
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def measure(trial: Trial) -> dict[str, Measured]:
    attend = KINDS[trial.text("kind")]
    query, key, value = (torch.randn(1, 1, 16, 8, device=trial.device) for _ in range(3))
    torch.testing.assert_close(
        by_association(query, key, value), attention(query, key, value, score=dot, softmax=False)
    )
    costs = [cost(attend, min(length, trial.budget["longest"]), trial) for length in LENGTHS]
    times, sizes = [time for time, _ in costs], [size for _, size in costs]
    return {
        "time": times[-1],
        "memory": sizes[-1],
        "time_exponent": exponent(times),
        "memory_exponent": exponent(sizes),
        "times": times,
        "sizes": sizes,
    }


def is_quadratic(key: str, kind: str) -> Claim:
    return Claim(
        f"the memory of {kind} attention grows nearly with the square of the length: exponent above 1.7",
        lambda r: r.is_above(key, {"kind": kind}, 1.7),
    )


STUDY = Study(
    name="cost",
    question="How do time and memory of attention grow with the length of the text?",
    concept="Q7",
    setup=(
        f"Forward and backward pass of attention on one text, {HEADS} heads of width {WIDTH}, float32, for "
        f"{LENGTHS[0]} to {LENGTHS[-1]} tokens: the equation as it stands (naive), the fused kernel, the fused "
        f"kernel with a window of {WINDOW}, and without the softmax as Q (Kᵀ V). Time: the fastest of several "
        "passes. Memory: the peak above what was in use before. Exponent p: the cost grows like n^p between the "
        "last three lengths; 1 is linear, 2 quadratic. Trials run one after another; a seed is a repetition."
    ),
    variants=grid(kind=tuple(KINDS)),
    measure=measure,
    measures=(
        Measure("time", f"ms at {LENGTHS[-1]}", digits=1, timed=True),
        Measure("memory", f"MiB at {LENGTHS[-1]}", digits=1, in_words=f"the memory in MiB at {LENGTHS[-1]:,} tokens"),
        Measure("time_exponent", "exponent of time", in_words="the exponent of time", timed=True),
        Measure("memory_exponent", "exponent of memory", in_words="the exponent of memory"),
    ),
    curves=(Measure("times", "ms by length", digits=1), Measure("sizes", "MiB by length", digits=1)),
    predictions=(
        is_quadratic("memory_exponent", "naive"),
        Claim(
            "the fused kernel needs less than half the memory of the naive path at the greatest length",
            lambda r: r.is_more(
                "memory", {"kind": "naive"}, {"kind": "fused"}, by=r.estimate("memory", {"kind": "naive"}).mean / 2
            ),
        ),
        Claim(
            "without the softmax time grows nearly linearly: exponent below 1.3",
            lambda r: r.is_below("time_exponent", {"kind": "no softmax"}, 1.3),
        ),
    ),
    wording={
        "kind": {
            "naive": "for naive attention", "fused": "for the fused kernel", "windowed": "for the window",
            "no softmax": "without the softmax",
        }
    },
    panels=(
        Lines("times", points=LENGTHS, x_title="tokens", log_x=True, log=True),
        Lines("sizes", points=LENGTHS, x_title="tokens", log_x=True, log=True),
    ),
    would_change=(
        "Longer texts: on the first machine, a 2-core CPU, the naive path held about six tables of n × n scores at "
        "1,024 tokens and three at 4,096, which pulls its exponent of memory below 2. Other machines: on a GPU small "
        "texts do not fill it, so that time hardly grows at first. Memory is that of the process, measured from "
        "outside; a few MiB are noise."
    ),
    budget={"repeats": 10, "longest": 4096},
    quick={"repeats": 3},
    exclusive=True,
)  # fmt: skip
