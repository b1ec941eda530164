"""Forecast for several GPUs, from the forecast for one and from assumptions about the interconnect.

    data parallel    every GPU holds all state; gradients are
                     all-reduced                                      2·P numbers sent per step
    sharded          every GPU holds 1/N of the state; weights are
                     gathered for the forward and backward pass,
                     gradients reduce-scattered                       3·P numbers sent per batch

The batches of a step are those of one device, so that each GPU gets 1/N of their rows: compute time and activations are
divided by N, communication is not.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

import torch

from heedful.errors import UsageError
from heedful.layers.block import Block
from heedful.models.build import build
from heedful.models.model_config import ModelConfig
from heedful.models.recurrent_network import Recurrence
from heedful.quantities import format_bytes, format_duration
from heedful.syntax import argument
from heedful.training.forecast.forecast import Forecast
from heedful.training.setup import PreparedRun

ELEMENT_BYTES = 4
"""Weights and gradients are sent in float32."""
STATE = ("weights", "optimizer", "averages")
ACTIVATIONS_AND_GRADIENTS = "activations and gradients"
BACKWARD_SHARE = 2 / 3
"""Share of a batch's FLOPs in the backward pass."""


@dataclass(frozen=True)
class Interconnect:
    """Assumed bandwidths, and the share of communication that overlaps with computation."""

    in_a_node: float = 300e9
    """Bytes per second that each GPU sends while all do, within a node (NVLink 4)."""
    between_nodes: float = 40e9
    """Bytes per second between nodes (400 Gbit/s per GPU, less a tenth of overhead and a tenth of other traffic)."""
    gpus_in_a_node: int = 8
    overlap: dict[str, float] = field(default_factory=lambda: {"data parallel": 0.7, "sharded": 0.7})
    """Share of communication that runs during computation. Data parallel: gradients are all-reduced during the backward
    pass of the last batch. Sharded: the next block is gathered while one is computed."""

    @classmethod
    def for_step(cls, *, gradients_at_end: bool) -> Interconnect:
        """No overlap in data parallelism if a compiled or captured step yields all gradients at its end."""
        return cls(overlap={**cls().overlap, "data parallel": 0.0}) if gradients_at_end else cls()

    def bandwidth(self, gpus: int) -> float:
        return self.in_a_node if gpus <= self.gpus_in_a_node else self.between_nodes

    def describe(self, gpus: int) -> str:
        overlaps = [f"{share:.0%} of communication overlapped if {name}" for name, share in self.overlap.items()]
        bandwidth = f"{self.bandwidth(gpus) / 1e9:.0f} GB/s from each GPU to the others"
        listed = ", ".join([bandwidth, *overlaps])
        return f"assumed: {listed}, as far as computation lasts; each GPU as fast as this device"


@dataclass(frozen=True)
class StepLoad:
    """The work of one step on one device."""

    parameters: int
    gathered: int
    """Bytes of full weights that a rank holds at a time when weights are sharded."""
    seconds: float
    """Compute time."""
    batches: int = 1
    """Batches that each device accumulates per step."""


@dataclass(frozen=True)
class ParallelForecast:
    """Forecast of a step on several GPUs with one strategy."""

    memory: dict[str, int]
    """Bytes on each GPU."""
    communication: float
    """Bytes that each GPU sends per step."""
    seconds_per_step: float
    tokens_per_second: float

    @property
    def peak_memory(self) -> int:
        return sum(self.memory.values())


def communication_bytes(load: StepLoad, gpus: int, strategy: str) -> float:
    """Bytes that each GPU sends per step: an all-reduce sends each number twice, a gather or a scatter once."""
    times = 2 if strategy == "data parallel" else 3 * load.batches
    return times * load.parameters * ELEMENT_BYTES * (gpus - 1) / gpus


def step_seconds(load: StepLoad, gpus: int, strategy: str, interconnect: Interconnect) -> float:
    """Compute time plus the communication that does not overlap with it.

    All-reduced gradients overlap with the backward pass of the last batch only.
    """
    compute = load.seconds / gpus
    communication = communication_bytes(load, gpus, strategy) / interconnect.bandwidth(gpus)
    window = compute * BACKWARD_SHARE / load.batches if strategy == "data parallel" else compute
    return compute + communication - min(interconnect.overlap[strategy] * communication, window)


def memory_per_gpu(memory: dict[str, int], load: StepLoad, gpus: int, strategy: str) -> dict[str, int]:
    """Bytes by part, gradients apart from activations, which are divided by the GPUs with either strategy."""
    gradients = load.parameters * ELEMENT_BYTES
    state = {name: memory[name] for name in STATE} | {"gradients": gradients}
    rest = {name: number for name, number in memory.items() if name not in (*STATE, ACTIVATIONS_AND_GRADIENTS)}
    if strategy == "sharded":
        state = {name: -(-number // gpus) for name, number in state.items()} | {"gathered": load.gathered}
    return state | {"activations": max(0, memory[ACTIVATIONS_AND_GRADIENTS] - gradients) // gpus} | rest


@dataclass(frozen=True)
class MultiGpuForecast:
    """A forecast for one device, and for several of them with each strategy."""

    one: Forecast
    gpus: int
    interconnect: Interconnect
    strategies: dict[str, ParallelForecast]

    def __str__(self) -> str:
        lines = [str(self.one), "", f"on {self.gpus} devices like this one"]
        for name, forecast in self.strategies.items():
            parts = ", ".join(f"{part} {format_bytes(number)}" for part, number in forecast.memory.items() if number)
            all_steps = format_duration(self.one.steps * forecast.seconds_per_step)
            lines += [
                f"{name}",
                f"  memory    {format_bytes(forecast.peak_memory)} on each: {parts}",
                f"  sent      {format_bytes(forecast.communication)} from each at every step",
                f"  time      {forecast.seconds_per_step:.3g} s a step, {forecast.tokens_per_second:,.0f} "
                f"{self.one.unit} to predict a second, {all_steps} for {self.one.steps:,} steps",
            ]
        share = f"also with {self.one.labels / self.gpus:,.0f} {self.one.unit} each at a step"
        return "\n".join([*lines, f"{self.interconnect.describe(self.gpus)}, {share}"])

    def to_json(self) -> str:
        strategies = {
            name: asdict(forecast) | {"peak_memory": forecast.peak_memory} for name, forecast in self.strategies.items()
        }
        added = {"gpus": self.gpus, "interconnect": asdict(self.interconnect), "strategies": strategies}
        return json.dumps(json.loads(self.one.to_json()) | added)


def forecast_multi_gpu(
    one: Forecast, config: ModelConfig, gpus: int, batches: int, interconnect: Interconnect
) -> MultiGpuForecast:
    """Extend a forecast for one device to `gpus` of them; the `batches` of a step are distributed if they divide
    evenly, else their rows."""
    if gpus < 1:
        raise UsageError(f"{argument('gpus')} must be positive, got {gpus}")
    if gpus > max(1, one.labels):
        raise UsageError(f"{argument('gpus', gpus)}: more than the {one.labels:,.0f} {one.unit} to predict in a step")
    batches_each = batches // gpus if batches % gpus == 0 else batches
    load = StepLoad(sum(one.parameters.values()), gathered_bytes(config), one.seconds_per_step, batches_each)

    def forecast(strategy: str) -> ParallelForecast:
        seconds = step_seconds(load, gpus, strategy, interconnect)
        memory = memory_per_gpu(one.memory, load, gpus, strategy)
        return ParallelForecast(memory, communication_bytes(load, gpus, strategy), seconds, one.labels / seconds)

    return MultiGpuForecast(one, gpus, interconnect, {name: forecast(name) for name in interconnect.overlap})


def plan_multi_gpu(prepared: PreparedRun, gpus: int) -> MultiGpuForecast:
    """Forecast a prepared run on one device and on `gpus` devices like it."""
    training = prepared.recipe.training
    links = Interconnect.for_step(gradients_at_end=training.cuda_graphs or training.compile)
    return forecast_multi_gpu(prepared.forecast, prepared.config, gpus, training.accumulate, links)


def gathered_bytes(config: ModelConfig) -> int:
    """Bytes of full weights at a time: all outside of blocks, one block, and the next one being gathered."""
    with torch.device("meta"):
        model = build(config)
    blocks = [
        sum(weight.numel() for weight in module.parameters())
        for module in model.modules()
        if isinstance(module, Block | Recurrence)
    ]
    total = sum(weight.numel() for weight in model.parameters())
    return int(ELEMENT_BYTES * (total - sum(blocks) + sum(sorted(blocks)[-2:])))
