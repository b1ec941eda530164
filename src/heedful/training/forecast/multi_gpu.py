"""What a run would take on several GPUs: from its forecast on one, and from assumptions that are named.

    data parallel    every GPU holds all; gradients are summed        2·P numbers moved a step
    sharded          every GPU holds 1/N of all state; weights are
                     gathered on the way forward and back,
                     gradients summed on the way back                 3·P numbers moved a batch

A step's batches are those of one device, so that each GPU has 1/N of their rows: the time to compute and the room for
activations are divided by N; what must be moved is not.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

import torch

from heedful.errors import UsageError
from heedful.layers.block import Block
from heedful.models.build import build
from heedful.models.model_config import ModelConfig
from heedful.models.recurrent import Recurrence
from heedful.training.forecast.forecast import Forecast, format_bytes
from heedful.training.reporting.events import format_duration

NUMBER = 4
"""Bytes: weights and gradients are moved in float32."""
STATE = ("weights", "optimizer", "averages")
MIXED = "activations and gradients"
BACK = 2 / 3
"""Of a batch's operations, those on the way back."""


@dataclass(frozen=True)
class Interconnect:
    """What is assumed of the wires, and of how much moving is hidden behind computing."""

    in_a_node: float = 300e9
    """Bytes a second that one GPU moves while all do, where all stand in one machine (NVLink 4)."""
    between_nodes: float = 40e9
    """And where they do not (400 Gbit/s for each GPU, of which a tenth is lost and a tenth is not ours)."""
    gpus_in_a_node: int = 8
    hidden: dict[str, float] = field(default_factory=lambda: {"data parallel": 0.7, "sharded": 0.7})
    """Share of moving that goes on while something is computed, as long as that lasts. Data parallel: gradients are
    summed on the way back of the last batch. Sharded: the next block is fetched while one is computed."""

    @classmethod
    def for_step(cls, *, gradients_at_end: bool) -> Interconnect:
        """Where all gradients come at once, at the end of a compiled or recorded step, nothing hides their way."""
        return cls(hidden={**cls().hidden, "data parallel": 0.0}) if gradients_at_end else cls()

    def speed(self, gpus: int) -> float:
        return self.in_a_node if gpus <= self.gpus_in_a_node else self.between_nodes

    def words(self, gpus: int) -> str:
        hidden = ", ".join(f"{share:.0%} of moving hidden if {way}" for way, share in self.hidden.items())
        wires = f"{self.speed(gpus) / 1e9:.0f} GB/s from each GPU to the others"
        return f"assumed: {wires}, {hidden}, where computing lasts that long; computing at the speed of this device"


@dataclass(frozen=True)
class StepLoad:
    """What one step is on one device."""

    parameters: int
    gathered: int
    """Bytes of weights that a shard holder has whole at one time."""
    seconds: float
    """Computing."""
    tokens: float
    batches: int = 1
    """That each device goes through one after the other before weights change."""


@dataclass(frozen=True)
class ParallelForecast:
    """The same step on several GPUs, in one of the two ways."""

    memory: dict[str, int]
    """Bytes on each GPU."""
    moved: float
    """Bytes each GPU sends in a step."""
    seconds_per_step: float
    tokens_per_second: float

    @property
    def peak_memory(self) -> int:
        return sum(self.memory.values())


def communication_bytes(load: StepLoad, gpus: int, way: str) -> float:
    """An all-reduce sends each number twice, less the part a GPU has already; a gather or a scatter once."""
    times = 2 if way == "data parallel" else 3 * load.batches
    return times * load.parameters * NUMBER * (gpus - 1) / gpus


def step_seconds(load: StepLoad, gpus: int, way: str, links: Interconnect) -> float:
    """Computing, and the part of moving that is not hidden behind it. Nothing can be hidden behind what is over: for
    summed gradients that is the way back of the last batch, two thirds of its time."""
    computing, moving = load.seconds / gpus, communication_bytes(load, gpus, way) / links.speed(gpus)
    cover = computing * BACK / load.batches if way == "data parallel" else computing
    return computing + moving - min(links.hidden[way] * moving, cover)


def memory_per_gpu(memory: dict[str, int], load: StepLoad, gpus: int, way: str) -> dict[str, int]:
    """Bytes by part; gradients are told apart from activations, which are divided either way."""
    gradients = load.parameters * NUMBER
    state = {name: memory[name] for name in STATE} | {"gradients": gradients}
    rest = {name: number for name, number in memory.items() if name not in (*STATE, MIXED)}
    if way == "sharded":
        state = {name: -(-number // gpus) for name, number in state.items()} | {"gathered": load.gathered}
    return state | {"activations": max(0, memory[MIXED] - gradients) // gpus} | rest


@dataclass(frozen=True)
class MultiGpuForecast:
    """A forecast, and what becomes of it on several GPUs."""

    one: Forecast
    gpus: int
    links: Interconnect
    ways: dict[str, ParallelForecast]

    def __str__(self) -> str:
        lines = [str(self.one), "", f"on {self.gpus} devices like this one"]
        for name, way in self.ways.items():
            parts = ", ".join(f"{part} {format_bytes(number)}" for part, number in way.memory.items() if number)
            all_steps = format_duration(self.one.steps * way.seconds_per_step)
            lines += [
                f"{name}",
                f"  memory    {format_bytes(way.peak_memory)} on each: {parts}",
                f"  moved     {format_bytes(way.moved)} from each at every step",
                f"  time      {way.seconds_per_step:.3g} s a step, {way.tokens_per_second:,.0f} {self.one.unit} "
                f"to predict a second, {all_steps} for {self.one.steps:,} steps",
            ]
        share = f"also with {self.one.labels / self.gpus:,.0f} {self.one.unit} each at a step"
        return "\n".join([*lines, f"{self.links.words(self.gpus)}, {share}"])

    def to_json(self) -> str:
        ways = {name: asdict(way) | {"peak_memory": way.peak_memory} for name, way in self.ways.items()}
        found = json.loads(self.one.to_json()) | {"gpus": self.gpus, "links": asdict(self.links), "ways": ways}
        return json.dumps(found, indent=2)


def forecast_multi_gpu(one: Forecast, config: ModelConfig, gpus: int, batches: int = 1, links: Interconnect | None = None) -> MultiGpuForecast:
    """A forecast on one device, carried over to `gpus` of them; `batches` are those of a step, dealt out if that comes
    out even."""
    if gpus < 1:
        raise UsageError(f"--gpus must be positive, got {gpus}")
    if gpus > max(1, one.labels):
        share = f"a step has {one.labels:,.0f} {one.unit} to predict"
        raise UsageError(f"--gpus {gpus}: {share}, for no more devices than that")
    links = links or Interconnect()
    each = batches // gpus if batches % gpus == 0 else batches
    load = StepLoad(sum(one.parameters.values()), gathered_bytes(config), one.seconds_per_step, one.labels, each)

    def way(name: str) -> ParallelForecast:
        seconds = step_seconds(load, gpus, name, links)
        return ParallelForecast(memory_per_gpu(one.memory, load, gpus, name), communication_bytes(load, gpus, name), seconds, load.tokens / seconds)

    return MultiGpuForecast(one, gpus, links, {name: way(name) for name in links.hidden})


def gathered_bytes(config: ModelConfig) -> int:
    """Bytes of what is whole at one time: all that lies outside of blocks, a block, and the next one on its way."""
    with torch.device("meta"):
        model = build(config)
    blocks = [
        sum(weight.numel() for weight in part.parameters())
        for part in model.modules()
        if isinstance(part, Block | Recurrence)
    ]
    total = sum(weight.numel() for weight in model.parameters())
    return int(NUMBER * (total - sum(blocks) + sum(sorted(blocks)[-2:])))
