"""Short training scenarios, run by one process or by several, whose results the tests compare.

python scenarios.py FOLDER NAME…        as one rank of the process group that the environment describes
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
from heedful.data.dataset import Split
from heedful.data.labeled_dataset import ClassBatches
from heedful.data.next_sentence import masked_batches
from heedful.data.pair_dataset import PairBatches
from heedful.data.qa_dataset import SpanBatches
from heedful.data.text_dataset import TextBatches
from heedful.data.text_size import TextSize
from heedful.data.token_store import Sequences
from heedful.model_folder import build_on_meta
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

RUN_ID = "scenario"
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
"""Model settings by family; encoders are named after their task."""
ENCODERS = ("fill", "classify", "answer")
TOKENIZER = Tokenizer.train(["abcdefghijklmnopqrstuvwx"], TokenizerConfig(kind="characters", vocabulary=30))


@dataclass(frozen=True)
class Scenario:
    """A model family, its training settings, and the scenario it resumes from."""

    family: str
    training: dict[str, Any] = field(default_factory=dict)
    resume: str = ""
    """The scenario from whose middle checkpoint to resume."""
    steps: int = STEPS
    double: bool = True
    """In double precision, differences are errors and not rounding."""
    model: dict[str, Any] = field(default_factory=dict)
    """Settings of the model that differ from those of its family."""
    nan_losses: bool = False
    """Whether the loss of one text is NaN."""


def _replicated_and_sharded(name: str, scenario: Scenario) -> dict[str, Scenario]:
    sharded = replace(scenario, training={**scenario.training, "shard": True})
    return {name: scenario, f"{name}, sharded": sharded}


class NaNForOneText(Seq2SeqLoss):
    """A loss that is NaN for batches with one of the texts."""

    def loss(self, model: Any, batch: Any) -> Tensor:
        has_text = (batch.source[:, :2] == torch.tensor(TEXTS[27][:2])).all(1).any()
        return super().loss(model, batch) * (float("nan") if has_text else 1.0)


SCENARIOS: dict[str, Scenario] = {}
for family in FAMILIES:
    SCENARIOS |= _replicated_and_sharded(family, Scenario(family, double=False))
SCENARIOS |= _replicated_and_sharded("in double precision", Scenario("encoder_decoder", steps=HALF))
ROWS: dict[str, Any] = {"average": "last", "average_last": 2, "evaluate_every": 2, "accumulate": 3, "clip": 0.1}
SHALLOW: dict[str, Any] = {"steps": FEW, "model": {"layers": 1}}
SCENARIOS |= _replicated_and_sharded(
    "checkpoint average, 3 batches split by rows", Scenario("encoder_decoder", ROWS, **SHALLOW)
)
SCENARIOS["muon"] = Scenario("encoder_decoder", {"optimizer": "muon"}, steps=FEW)
SCENARIOS |= _replicated_and_sharded(
    "2 whole batches per rank", Scenario("encoder_decoder", {"accumulate": 6, "r_drop": 0.5}, **SHALLOW)
)
SCENARIOS |= _replicated_and_sharded(
    "fewer rows than ranks", Scenario("recurrent_encoder_decoder", {"batch_tokens": 1}, steps=FEW)
)
SCENARIOS |= _replicated_and_sharded("layer-wise learning rates", Scenario("decoder", {"layer_decay": 0.5}, steps=FEW))
SCENARIOS |= _replicated_and_sharded(
    "skipped steps", Scenario("encoder_decoder", nan_losses=True, **{**SHALLOW, "steps": HALF})
)
SCENARIOS |= {
    "resumed": Scenario("encoder_decoder", resume="in double precision", steps=HALF),
    "resumed, sharded": Scenario("encoder_decoder", {"shard": True}, resume="in double precision", steps=HALF),
    "resumed from shards": Scenario("encoder_decoder", resume="in double precision, sharded", steps=HALF),
}


def make_trainer(scenario: Scenario, process_group: ProcessGroup) -> Trainer:
    settings = {**FAMILIES[scenario.family], **scenario.model}
    torch.manual_seed(0)
    if scenario.family in ENCODERS:
        shape = {"family": "encoder", "heads": 2, "layers": 2, "segments": 2, "max_length": 16, **SMALL, **settings}
        model = heedful.build(heedful.TransformerConfig(**shape))
    elif "design" in settings:
        model = heedful.build(settings.pop("design"), **SMALL, **settings)
    else:
        model = heedful.build(heedful.RecurrentConfig(**SMALL, **settings))
    if scenario.resume:
        model = build_on_meta(model.config) if scenario.training.get("shard") and process_group.size > 1 else model
    defaults = {
        "steps": scenario.steps,
        "batch_tokens": 96,
        "learning_rate": 0.01,
        "warmup": 2,
        "evaluate_every": scenario.steps // 2,
    }
    recipe = TrainingRecipe(**{**defaults, **scenario.training})
    texts = Sequences.from_lists(TEXTS)
    objective: Objective
    batches: Batches
    if scenario.family in ENCODERS:
        objective, batches = encoder_objective(scenario.family, texts, recipe.batch_tokens)
    elif scenario.family.endswith("encoder_decoder"):
        objective = (NaNForOneText if scenario.nan_losses else Seq2SeqLoss)(recipe.label_smoothing, recipe.r_drop)
        batches = PairBatches(texts, texts, max_tokens=recipe.batch_tokens, seed=3)
    else:
        objective, batches = CausalLMLoss(), TextBatches(texts, context=8, rows=5, seed=3)
    dtype = torch.float64 if scenario.double else torch.float32
    return Trainer(
        model.to(dtype),
        objective,
        batches,
        recipe,
        seed=3,
        device=torch.device("cpu"),
        events=Events(),
        process_group=process_group,
    )


def encoder_objective(task: str, texts: Sequences, tokens: int) -> tuple[Objective, Batches]:
    """Masked tokens and next sentences, weighted classes, or answer spans."""
    if task == "fill":
        sentences = Sequences.from_lists(
            [[*text, SEPARATOR] if index % 4 == 3 else text for index, text in enumerate(TEXTS)]
        )
        return MaskedLMLoss(), masked_batches(
            sentences, TOKENIZER, next_sentence=True, context=16, tokens=tokens, seed=3
        )
    if task == "classify":
        split = Split(
            (texts,),
            len(texts),
            TextSize(0, 0, 0),
            labels=Sequences.from_lists([[index % 3] for index in range(len(texts))]),
        )
        weights = [0.5, 1.0, 2.0]
        return ClassificationLoss(), ClassBatches(
            split, SpecialTokenTemplate(), 3, multi_label=False, max_tokens=tokens, seed=3, weights=weights
        )
    windows = Sequences.from_lists([SpecialTokenTemplate().wrap(text, text) for text in TEXTS])
    spans = Sequences.from_lists([[len(text) + 2, len(text) + 2, 2 * len(text) + 1] for text in TEXTS])
    return AnswerSpanLoss(), SpanBatches(windows, spans, max_tokens=tokens, seed=3)


@dataclass(frozen=True)
class ScenarioResult:
    """Checkpoints in the middle and at the end, the best model, and the loss of every step."""

    middle: tuple[dict[str, Tensor], dict[str, Any]]
    end: tuple[dict[str, Tensor], dict[str, Any]]
    best: dict[str, Tensor]
    losses: list[float]

    @classmethod
    def read(cls, folder: Path) -> ScenarioResult:
        middle, end = (
            ({name: tensor[local_slices(tensor)] for name, tensor in tensors.items()}, progress)
            for tensors, progress in (open_checkpoint(folder / name) for name in ("middle", "end"))
        )
        losses = json.loads((folder / "losses.json").read_text())
        return cls(middle, end, load_file(folder / "best.safetensors"), losses)


def save(trainer: Trainer, folder: Path) -> Path:
    """Write a checkpoint, by all ranks together."""
    tensors, progress = trainer.state()
    checkpoint = Checkpoint(RUN_ID, trainer.progress.step, {**tensors}, {"progress": progress})
    return write_checkpoint(folder, checkpoint, keep=9, process_group=trainer.process_group)


def open_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    checkpoint = newest_checkpoint(folder, RUN_ID, print)
    return checkpoint.tensors, checkpoint.metadata["progress"]


def run_scenario(
    name: str, folder: Path, process_group: ProcessGroup = SINGLE_PROCESS, resume: Path | None = None
) -> None:
    """Train a scenario and write its results into a folder; `resume`: from the middle checkpoint in another folder."""
    trainer = make_trainer(SCENARIOS[name], process_group)
    if resume is not None:
        trainer.restore(*open_checkpoint(resume / "middle"))
        save(trainer, folder / "middle")
    best: dict[str, Tensor] = {}
    losses: list[float] = []
    step = trainer.step

    def logged_step(stream: Any) -> Any:
        result = step(stream)
        losses.append(float(result.loss) / result.tokens)
        return result

    def after_step() -> None:
        if trainer.progress.step == trainer.recipe.steps // 2:
            save(trainer, folder / "middle")

    def save_best(model: torch.nn.Module) -> None:
        best.update({key: tensor.detach().clone() for key, tensor in model.state_dict().items()})

    def write() -> None:
        save_file({key: tensor.contiguous() for key, tensor in best.items()}, folder / "best.safetensors")
        (folder / "losses.json").write_text(json.dumps(losses))

    trainer.step = logged_step  # type: ignore[method-assign]
    trainer.fit(lambda model: Evaluation(float(trainer.progress.step), {}), save_best, after_step)
    save(trainer, folder / "end")
    process_group.run_on_rank_zero(write)


if __name__ == "__main__":
    torch.set_num_threads(1)
    data_parallel.BUCKET_MEGABYTES = 0.004  # so that these small models have several buckets
    folder = Path(sys.argv[1])
    with join_process_group("cpu") as process_group:
        for name in sys.argv[2:]:
            if name not in SCENARIOS:
                sys.modules["scenarios"] = sys.modules["__main__"]
                importlib.import_module("checkpoint_scenarios").CHECKPOINT_SCENARIOS[name](folder / name, process_group)
                continue
            source = SCENARIOS[name].resume
            run_scenario(name, folder / name, process_group, folder.parent / "2" / source if source else None)
