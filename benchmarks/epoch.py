"""One epoch of real pairs through each toolkit's own loop, for `training.py`: loader, steps, reports, one evaluation.

    python benchmarks/epoch.py heedful|hugging-face|hugging-face-grouped|joeynmt FOLDER THREADS

FOLDER was written by `prepare`: all toolkits train on the same token ids, with a model of the same shape (post-norm,
sinusoidal positions, tied embeddings), with AdamW, label smoothing 0.1, dropout 0.1, clipping at 1, in float32.
Start-up and tokenizing are not timed; nothing is saved. The last line printed is JSON.

  heedful       the Trainer of `heedful train`: batches bucketed by length up to a token budget, an exponential average
                of the weights (which the others do not keep), plain lines and metrics.jsonl; validation loss
  hugging face  Seq2SeqTrainer, MarianMTModel and DataCollatorForSeq2Seq as they come: rows in random order, as many
                a batch as heedful has on average, so that the number of updates is the same; needs accelerate;
                `grouped` turns on its grouping by length, which is off by default
  joeynmt       TrainManager of 2.3, with as many rows a batch; its validation is reduced to the loss (it always
                decodes too) and it reads the ids as words, which spares it its own subword step. It runs in a
                separate environment, whose python `training.py --joeynmt` names:
                pip install torch 'joeynmt==2.3.*' importlib_metadata (imported by it, but not among its requirements)
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

SHAPE = {"width": 256, "heads": 8, "layers": 3}
DROPOUT, SMOOTHING, RATE, DECAY, BETAS, CLIP = 0.1, 0.1, 1e-3, 0.01, (0.9, 0.98), 1.0
VALID_SHARE = 0.035
"""Validation pairs for each training pair, as in the whole corpus."""
TOOLKITS = ("heedful", "hugging-face", "hugging-face-grouped", "joeynmt")
PACKAGES = ("torch", "transformers", "accelerate", "joeynmt")
PARTS = {"train": "train", "valid": "val"}


def prepare(corpus: Path, folder: Path, pairs: int, vocabulary: int, shape: dict[str, int]) -> dict[str, Any]:
    """Write the first pairs of the corpus as text, a recipe for heedful, and heedful's token ids for the others."""
    from heedful.training.recipe import make_recipe, to_toml
    from heedful.training.tasks import get_task

    for part, limit in (("train", pairs), ("val", max(16, round(pairs * VALID_SHARE)))):
        for side in ("en", "de"):
            lines = (corpus / f"{part}.{side}").read_text(encoding="utf-8").splitlines()[:limit]
            (folder / f"{part}.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = {part: [str(folder / f"{name}.{side}") for side in ("en", "de")] for part, name in PARTS.items()}
    recipe = make_recipe(
        {
            "task": "translate",
            "data": files,
            "tokenizer": {"kind": "byte_bpe", "vocabulary": vocabulary},
            "model": {"family": "encoder_decoder", **shape, "dropout": DROPOUT},
            "training": {
                "steps": 1,
                "batch_tokens": 3072,
                "learning_rate": RATE,
                "betas": BETAS,
                "weight_decay": DECAY,
                "clip": CLIP,
                "label_smoothing": SMOOTHING,
                "warmup": 100,
            },
        }
    )
    (folder / "recipe.toml").write_text(to_toml(recipe), encoding="utf-8")
    data = _read(folder)[1]
    for part, split in (("train", data.train), ("valid", data.valid)):
        ids = [[side[i].tolist() for side in split.sides] for i in range(split.examples)]
        (folder / f"{part}.json").write_text(json.dumps(ids), encoding="utf-8")
    data.tokenizers[0].save(folder / "tokenizer.json")
    plan = get_task(recipe.task).training_components(recipe, data, torch.device("cpu")).train.plan(0)
    sizes = [side.lengths + 1 for side in data.train.sides]
    padded = sum(len(rows) * (int(sizes[0][rows].max()) + int(sizes[1][rows].max())) for rows in plan)
    properties = {
        **shape,
        "vocabulary": len(data.tokenizers[0]),
        "pairs": data.train.examples,
        "valid_pairs": data.valid.examples,
        "tokens": int(sum(size.sum() for size in sizes)),
        "heedful_padding": round(1 - int(sum(size.sum() for size in sizes)) / padded, 4),
        "steps": len(plan),
        "rows": -(-data.train.examples // len(plan)),
    }
    (folder / "properties.json").write_text(json.dumps(properties), encoding="utf-8")
    return properties


def _read(folder: Path) -> tuple[Any, Any]:
    from heedful.training.recipe import make_recipe, read_recipe
    from heedful.training.reporting.events import Events
    from heedful.training.setup import prepare_data_again

    recipe = make_recipe(read_recipe(folder / "recipe.toml"))
    return recipe, prepare_data_again(recipe, (), Events())


Epoch = Callable[[], float]
"""Trains one epoch, evaluates, and returns the validation loss."""


def heedful(folder: Path, properties: dict[str, Any]) -> tuple[Any, Epoch]:
    from heedful.evaluation.perplexity import evaluate_perplexity
    from heedful.models.build import build
    from heedful.training.reporting.events import Events, MetricsFile, PlainLines
    from heedful.training.setup import configure_cpu_memory
    from heedful.training.tasks import get_task
    from heedful.training.trainer import Evaluation, Trainer

    recipe, data = _read(folder)
    device = torch.device("cpu")
    components = get_task(recipe.task).training_components(recipe, data, device)
    training = recipe.training.with_changes(steps=properties["steps"], evaluate_every=properties["steps"])
    model = build(recipe.model_config_for(len(data.tokenizers[0])))
    events = Events(PlainLines(sys.stderr), MetricsFile(folder / "metrics.jsonl"))
    configure_cpu_memory(training, components.train, device)
    trainer = Trainer(
        model, components.objective, components.train, training, seed=recipe.seed, device=device, events=events
    )

    def evaluate(model: Any) -> Evaluation:
        scores = evaluate_perplexity(model, components.objective, components.valid, data.valid, device)
        return Evaluation(-scores["loss"], {"valid_loss": scores["loss"]})

    return model, lambda: -trainer.fit(evaluate, lambda _: None).best_score


def hugging_face(folder: Path, properties: dict[str, Any], order: str = "random") -> tuple[Any, Epoch]:
    from transformers import (
        DataCollatorForSeq2Seq,
        MarianConfig,
        MarianMTModel,
        PreTrainedTokenizerFast,
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
    )

    from contenders import marian_shape

    end = 3
    sets = {
        part: [{"input_ids": [*source, end], "labels": [*target, end]} for source, target in _ids(folder, part)]
        for part in ("train", "valid")
    }
    special: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": end, "decoder_start_token_id": 2}
    shape = marian_shape(properties["width"], properties["heads"], properties["layers"], DROPOUT)
    model = MarianMTModel(MarianConfig(vocab_size=properties["vocabulary"], **special, **shape))
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="<pad>")
    settings = Seq2SeqTrainingArguments(
        output_dir=str(folder / "hugging-face"),
        num_train_epochs=1,
        per_device_train_batch_size=properties["rows"],
        per_device_eval_batch_size=properties["rows"],
        learning_rate=RATE,
        lr_scheduler_type="cosine",
        warmup_steps=100,
        weight_decay=DECAY,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        max_grad_norm=CLIP,
        label_smoothing_factor=SMOOTHING,
        train_sampling_strategy=order,
        logging_steps=50,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        seed=1,
    )
    trainer = Seq2SeqTrainer(
        model=model,
        args=settings,
        train_dataset=sets["train"],
        eval_dataset=sets["valid"],
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    )

    def epoch() -> float:
        trainer.train()
        return float(next(log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log))

    return model, epoch


def grouped(folder: Path, properties: dict[str, Any]) -> tuple[Any, Epoch]:
    return hugging_face(folder, properties, order="group_by_length")


def joeynmt(folder: Path, properties: dict[str, Any]) -> tuple[Any, Epoch]:
    from joeynmt.config import parse_global_args, set_validation_args
    from joeynmt.prediction import prepare as build
    from joeynmt.training import TrainManager

    class LossOnly(TrainManager):  # type: ignore[misc]
        def _save_checkpoint(self, *_: Any) -> None:
            """Checkpoints are not part of the benchmark."""

        def validation_loss(self, data: Any) -> float:
            self.model.eval()
            loss, tokens = 0.0, 0
            keys = {"eos_index": self.model.eos_index, "pad_index": self.model.pad_index}
            with torch.no_grad():
                for batch in data.make_iter(properties["rows"], seed=self.seed, device=self.device, **keys):
                    loss += float(self.model(return_type="loss", **vars(batch))[0])
                    tokens += int(batch.ntokens)
            return loss / tokens

    home = folder / "joeynmt"
    home.mkdir(exist_ok=True)
    for part in ("train", "valid"):
        for number, side in enumerate(("en", "de")):
            lines = (" ".join(map(str, pair[number])) for pair in _ids(folder, part))
            (home / f"{part}.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["<unk>", "<pad>", "<s>", "</s>", *map(str, range(properties["vocabulary"] - 4))]
    (home / "vocabulary").write_text("\n".join(words) + "\n", encoding="utf-8")

    def side_settings(language: str) -> dict[str, Any]:
        return {"lang": language, "level": "word", "voc_file": str(home / "vocabulary")}

    stack = {
        "type": "transformer",
        "num_layers": properties["layers"],
        "num_heads": properties["heads"],
        "hidden_size": properties["width"],
        "ff_size": 4 * properties["width"],
        "embeddings": {"embedding_dim": properties["width"], "scale": True, "dropout": DROPOUT},
        "dropout": DROPOUT,
        "layer_norm": "post",
    }
    settings = {
        "name": "epoch",
        "model_dir": str(home / "model"),
        "use_cuda": False,
        "random_seed": 1,
        "data": {
            "train": str(home / "train"),
            "dev": str(home / "valid"),
            "dataset_type": "plain",
            "src": side_settings("en"),
            "trg": side_settings("de"),
        },
        "testing": {"batch_size": properties["rows"]},
        "training": {
            "optimizer": "adamw",
            "adam_betas": list(BETAS),
            "learning_rate": RATE,
            "learning_rate_min": 0.0,
            "scheduling": "warmupinversesquareroot",
            "learning_rate_warmup": 100,
            "weight_decay": DECAY,
            "clip_grad_norm": CLIP,
            "label_smoothing": SMOOTHING,
            "normalization": "tokens",
            "epochs": 1,
            "batch_size": properties["rows"],
            "logging_freq": 50,
            "validation_freq": 50_000_000,  # the evaluation is called below, after the epoch
        },
        "model": {
            "initializer": "xavier_uniform",
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": stack,
            "decoder": stack,
        },
    }
    (home / "model").mkdir(exist_ok=True)
    args = parse_global_args(settings, rank=0, mode="train")
    model, train, valid, _ = build(args, rank=0, mode="train")
    trainer = LossOnly(
        rank=0,
        model=model,
        model_dir=args.model_dir,
        device=args.device,
        autocast=args.autocast,
        seed=args.seed,
        train_args=args.train,
        dev_args=set_validation_args(args.test),
    )

    def epoch() -> float:
        trainer.train_and_validate(train, valid)
        return trainer.validation_loss(valid)

    return model, epoch


def _ids(folder: Path, part: str) -> Any:
    return json.loads((folder / f"{part}.json").read_text(encoding="utf-8"))


def main() -> None:
    toolkit, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    random.seed(1)
    properties = json.loads((folder / "properties.json").read_text(encoding="utf-8"))
    makers = dict(zip(TOOLKITS, (heedful, hugging_face, grouped, joeynmt), strict=True))
    model, epoch = makers[toolkit](folder, properties)
    start = time.perf_counter()
    loss = epoch()
    seconds = time.perf_counter() - start
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    result = {
        "seconds": seconds,
        "tokens_per_second": properties["tokens"] / seconds,
        "valid_loss": loss,
        "peak_mib": int(status["VmHWM"].split()[0]) / 1024,
        "parameters": sum(weight.numel() for weight in model.parameters() if weight.requires_grad),
        "versions": {package: version(package) for package in PACKAGES if package in sys.modules},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
