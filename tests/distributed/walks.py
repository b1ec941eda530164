"""Short walks of a trainer, alone or as one of several processes: what the tests here compare.

python walks.py FOLDER NAME…        as one of several processes, which find each other by the environment
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import heedful
from heedful.data.batching import Batches
from heedful.data.pair_dataset import PairBatches
from heedful.data.text_dataset import TextBatches
from heedful.data.dataset import Split
from heedful.data.labelled_dataset import ClassBatches
from heedful.data.next_sentence import masked_batches
from heedful.data.qa_dataset import SpanBatches
from heedful.data.token_store import Sequences
from heedful.model_folder import build_without_weights
from heedful.objectives.answer_span_loss import AnswerSpanLoss
from heedful.objectives.causal_lm_loss import CausalLMLoss
from heedful.objectives.classification_loss import ClassificationLoss
from heedful.objectives.masked_lm_loss import MaskedLMLoss
from heedful.objectives.objective import Objective
from heedful.objectives.seq2seq_loss import Seq2SeqLoss
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.special_tokens import SEPARATOR
from heedful.text.tokenizer import Tokenizer, TokenizerConfig
from heedful.training.checkpoint.format import Checkpoint, newest_checkpoint, write_checkpoint
from heedful.training.distributed import data_parallel
from heedful.training.distributed.fsdp import local_slices
from heedful.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup, join_process_group
from heedful.training.recipe import TrainingRecipe
from heedful.training.reporting.events import Events
from heedful.training.trainer import Evaluation, Trainer

STEPS, HALF, FEW = 20, 10, 6
TEXTS = [[6 + (i * j) % 20 for j in range(1, 2 + i % 7)] for i in range(60)]
SMALL: dict[str, Any] = {"vocabulary": 30, "width": 16, "dropout": 0.0}
FAMILIES: dict[str, dict[str, Any]] = {
    "encoder_decoder": {"design": "laptop-translator", "heads": 2, "layers": 2},
    "decoder": {"design": "laptop-writer", "heads": 2, "layers": 2},
    "recurrent_decoder": {"family": "recurrent_decoder", "layers": 2},
    "recurrent_encoder_decoder": {"family": "recurrent_encoder_decoder", "attention": "additive"},
    "fill": {"tasks": ("masked_token", "next_sentence")},
    "classify": {"tasks": ("sequence_class",), "classes": 3, "pooling": "mean"},
    "answer": {"tasks": ("answer_span",)},
}
"""By name; an encoder goes by what it learns."""
ENCODERS = ("fill", "classify", "answer")
TOKENIZER = Tokenizer.train(["abcdefghijklmnopqrstuvwx"], TokenizerConfig(kind="characters", vocabulary=30))


@dataclass(frozen=True)
class Walk:
    """A family, how it is trained, and from where."""

    family: str
    training: dict[str, Any] = field(default_factory=dict)
    resume: str = ""
    """The name of a walk whose middle to go on from."""
    steps: int = STEPS
    double: bool = True
    """In double precision, what is left of a difference is a fault and not a rounding."""
    size: dict[str, Any] = field(default_factory=dict)
    """Where the model is smaller than others of its family."""
    poisoned: bool = False
    """Whether some rows have a loss that is no number."""


def _both(name: str, walk: Walk) -> dict[str, Walk]:
    return {name: walk, f"{name}, sharded": replace(walk, training={**walk.training, "shard": True})}


class Poisoned(Seq2SeqLoss):
    """A loss that is no number wherever one text turns up."""

    def loss(self, model: Any, batch: Any) -> Tensor:
        found = (batch.source[:, :2] == torch.tensor(TEXTS[27][:2])).all(1).any()
        return super().loss(model, batch) * (float("nan") if found else 1.0)


WALKS: dict[str, Walk] = {}
for each in FAMILIES:
    WALKS |= _both(each, Walk(each, double=False))
WALKS |= _both("in double precision", Walk("encoder_decoder", steps=HALF))
ROWS: dict[str, Any] = {"average": "last", "average_last": 2, "evaluate_every": 2, "accumulate": 3, "clip": 0.1}
SHALLOW: dict[str, Any] = {"steps": FEW, "size": {"layers": 1}}
WALKS |= _both("last average, 3 batches by rows", Walk("encoder_decoder", ROWS, **SHALLOW))
WALKS["muon"] = Walk("encoder_decoder", {"optimizer": "muon"}, steps=FEW)
WALKS |= _both("2 whole batches each", Walk("encoder_decoder", {"accumulate": 6, "r_drop": 0.5}, **SHALLOW))
WALKS |= _both("fewer rows than processes", Walk("recurrent_encoder_decoder", {"batch_tokens": 1}, steps=FEW))
WALKS |= _both("slower below", Walk("decoder", {"layer_decay": 0.5}, steps=FEW))
WALKS |= _both("steps skipped", Walk("encoder_decoder", poisoned=True, **{**SHALLOW, "steps": HALF}))
WALKS |= {
    "resumed": Walk("encoder_decoder", resume="in double precision", steps=HALF),
    "resumed, sharded": Walk("encoder_decoder", {"shard": True}, resume="in double precision", steps=HALF),
    "resumed from shards": Walk("encoder_decoder", resume="in double precision, sharded", steps=HALF),
}


def make(walk: Walk, world: ProcessGroup) -> Trainer:
    settings = {**FAMILIES[walk.family], **walk.size}
    torch.manual_seed(0)
    if walk.family in ENCODERS:
        shape = {"family": "encoder", "heads": 2, "layers": 2, "segments": 2, "max_length": 16, **SMALL, **settings}
        model = heedful.build(heedful.TransformerConfig(**shape))
    elif "design" in settings:
        model = heedful.build(settings.pop("design"), **SMALL, **settings)
    else:
        model = heedful.build(heedful.RecurrentConfig(**SMALL, **settings))
    if walk.resume:
        model = build_without_weights(model.config) if walk.training.get("shard") and world.size > 1 else model
    chosen = {
        "steps": walk.steps,
        "batch_tokens": 96,
        "learning_rate": 0.01,
        "warmup": 2,
        "evaluate_every": walk.steps // 2,
    }
    recipe = TrainingRecipe(**{**chosen, **walk.training})
    sides = Sequences.from_lists(TEXTS)
    objective: Objective
    batches: Batches
    if walk.family in ENCODERS:
        objective, batches = encoder_lesson(walk.family, sides, recipe.batch_tokens)
    elif walk.family.endswith("encoder_decoder"):
        objective = (Poisoned if walk.poisoned else Seq2SeqLoss)(recipe.label_smoothing, recipe.r_drop)
        batches = PairBatches(sides, sides, max_tokens=recipe.batch_tokens, seed=3)
    else:
        objective, batches = CausalLMLoss(), TextBatches(sides, context=8, rows=5, seed=3)
    kind = torch.float64 if walk.double else torch.float32
    return Trainer(
        model.to(kind), objective, batches, recipe, seed=3, device=torch.device("cpu"), events=Events(), process_group=world
    )


def encoder_lesson(task: str, texts: Sequences, tokens: int) -> tuple[Objective, Batches]:
    """Hidden words and next sentences, classes with weights, or places of answers."""
    if task == "fill":
        sentences = Sequences.from_lists([[*text, SEPARATOR] if place % 4 == 3 else text for place, text in enumerate(TEXTS)])
        return MaskedLMLoss(), masked_batches(sentences, TOKENIZER, next_sentence=True, context=16, tokens=tokens, seed=3)
    if task == "classify":
        split = Split((texts,), len(texts), 0, 0, labels=Sequences.from_lists([[place % 3] for place in range(len(texts))]))
        weights = [0.5, 1.0, 2.0]
        return ClassificationLoss(), ClassBatches(split, SpecialTokenTemplate(), 3, multi_label=False, max_tokens=tokens, seed=3, weights=weights)
    windows = Sequences.from_lists([SpecialTokenTemplate().wrap(text, text) for text in TEXTS])
    places = Sequences.from_lists([[len(text) + 2, len(text) + 2, 2 * len(text) + 1] for text in TEXTS])
    return AnswerSpanLoss(), SpanBatches(windows, places, max_tokens=tokens, seed=3)


@dataclass(frozen=True)
class Walked:
    """The state in the middle and at the end, the model as it was last saved, and the loss all along."""

    middle: tuple[dict[str, Tensor], dict[str, Any]]
    end: tuple[dict[str, Tensor], dict[str, Any]]
    saved: dict[str, Tensor]
    losses: list[float]

    @classmethod
    def read(cls, folder: Path) -> Walked:
        middle, end = (
            ({name: tensor[local_slices(tensor)] for name, tensor in tensors.items()}, facts)
            for tensors, facts in (opened(folder / place) for place in ("middle", "end"))
        )
        losses = json.loads((folder / "losses.json").read_text())
        return cls(middle, end, load_file(folder / "saved.safetensors"), losses)


def keep(trainer: Trainer, folder: Path) -> Path:
    """Write the state, by all processes together."""
    tensors, facts = trainer.state()
    kept = Checkpoint("walk", trainer.progress.step, {**tensors}, {"progress": facts})
    return write_checkpoint(folder, kept, keep=9, process_group=trainer.process_group)


def opened(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    found = newest_checkpoint(folder, "walk", print)
    return found.tensors, found.metadata["progress"]


def walk(name: str, folder: Path, world: ProcessGroup = SINGLE_PROCESS, resume: Path | None = None) -> None:
    """Written into a folder; on from the middle of the one in another."""
    trainer = make(WALKS[name], world)
    if resume is not None:
        trainer.restore(*opened(resume / "middle"))
        keep(trainer, folder / "middle")
    saved: dict[str, Tensor] = {}
    losses: list[float] = []
    step = trainer.step

    def watched(stream: Any) -> Any:
        result = step(stream)
        losses.append(float(result.loss) / result.tokens)
        return result

    def after_step() -> None:
        if trainer.progress.step == trainer.recipe.steps // 2:
            keep(trainer, folder / "middle")

    def save_best(model: torch.nn.Module) -> None:
        saved.update({key: tensor.detach().clone() for key, tensor in model.state_dict().items()})

    def write() -> None:
        save_file({key: tensor.contiguous() for key, tensor in saved.items()}, folder / "saved.safetensors")
        (folder / "losses.json").write_text(json.dumps(losses))

    trainer.step = watched  # type: ignore[method-assign]
    trainer.fit(lambda model: Evaluation(float(trainer.progress.step), {}), save_best, after_step)
    keep(trainer, folder / "end")
    world.run_on_rank_zero(write)


if __name__ == "__main__":
    torch.set_num_threads(1)
    data_parallel.BUCKET_MEGABYTES = 0.004  # so that these small models have several buckets
    folder = Path(sys.argv[1])
    with join_process_group("cpu") as world:
        for name in sys.argv[2:]:
            if name not in WALKS:
                sys.modules["walks"] = sys.modules["__main__"]
                importlib.import_module("mishaps").MISHAPS[name](folder / name, world)
                continue
            before = WALKS[name].resume
            walk(name, folder / name, world, folder.parent / "2" / before if before else None)
