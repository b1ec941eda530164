"""A recipe: every setting that decides the result of a training run, in one TOML file.

The same recipe, data and machine give the same model. `train` writes the complete recipe into the run folder, including
the settings it chose.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import (
    Field,
    PositiveFloat,
    ValidationError,
    field_validator,
    model_validator,
)

from heedful.config import Config, validation_message
from heedful.data.corpus_files import CorpusFiles, as_columns
from heedful.data.progress import StartProgress, no_progress
from heedful.errors import UsageError, nearest
from heedful.evaluation.bleu_tokenizer import BleuTokenizerName
from heedful.interventions.kinds import JsonIntervention, Unmask
from heedful.models.model_config import ModelConfig, RecurrentConfig, TransformerConfig, WordVectorsConfig
from heedful.models.presets import make_config
from heedful.text.tokenizer import TokenizerConfig
from heedful.training.optim.schedules import ScheduleName
from heedful.training.tasks import TASKS

LARGEST = 10**12
"""Upper bound of numbers of steps, tokens and texts, so that their products fit into 64 bits."""
Positive = Annotated[int, Field(gt=0, le=LARGEST)]
NonNegative = Annotated[int, Field(ge=0, le=LARGEST)]


class DataRecipe(Config):
    """The text files and how they are read."""

    train: tuple[str, ...]
    valid: tuple[str, ...] = ()
    """Empty: a part of the training text is held out (`held_out`)."""
    test: tuple[str, ...] = ()
    held_out: float = Field(default=0.02, gt=0.0, lt=0.5)
    """Fraction of the training text used for validation if there are no `valid` files."""
    max_length: Positive = 256
    """Maximum tokens: longer pairs are dropped, longer labeled texts truncated (both are counted), and passages of
    questions are split into windows."""
    columns: tuple[str, ...] = ()
    """Columns of a table, by name or number from 1, if not the usual ones: source and target; text; one or two of text,
    then labels; passage, question, answer. Of a .tmx: the languages of source and target."""
    stride: NonNegative = 128
    """Tokens from the start of one window of a long passage to the next (answer); 0 = no windows."""
    on_bad_line: Literal["fail", "skip"] = "fail"
    """Unreadable lines: stop with an error, or skip and count them."""
    next_sentence: bool = False
    """Also train next-sentence prediction (fill); documents then end at blank lines."""

    @field_validator("columns", mode="before")
    @classmethod
    def _columns(cls, columns: Any) -> Any:
        return as_columns(columns) if isinstance(columns, str | list | tuple) else columns

    def files(self, start_progress: StartProgress = no_progress) -> CorpusFiles:
        """The training and validation files, and how they are read."""
        train, valid = ([Path(file) for file in files] for files in (self.train, self.valid))
        return CorpusFiles(train, valid, self.held_out, self.columns, self.on_bad_line, start_progress)


class TokenizerRecipe(TokenizerConfig):
    """The tokenizer and how it is trained."""

    joint: bool = True
    """One shared vocabulary for source and target."""
    sample: Positive = 50_000_000
    """Maximum characters of text that the tokenizer is trained on."""
    subword_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Subword regularization: probability that a token is split into its parts."""

    def training(self, characters: int) -> tuple[TokenizerConfig, float]:
        """The tokenizer's configuration, and the share of `characters` that it is trained on."""
        config = TokenizerConfig(**{name: getattr(self, name) for name in TokenizerConfig.model_fields})
        return config, self.sample / max(1, characters)


class TrainingRecipe(Config):
    """Batches, objective, optimizer, evaluation and checkpoints."""

    steps: Positive
    """Number of optimizer steps."""
    batch_tokens: Positive = 4096
    """Tokens per batch, padding and both sides included."""
    accumulate: Positive = 1
    """Gradient accumulation: batches per optimizer step."""
    context: int = Field(default=256, gt=0, le=1_000_000)
    """Context length in tokens (generate, fill)."""
    mask_probability: float = Field(default=0.15, gt=0.0, lt=0.9)
    """Fraction of tokens that are masked (fill)."""
    whole_word_masking: bool = False
    """Mask all subwords of a word or none (fill)."""
    window: Positive = 5
    """Maximum context words on each side (word vectors)."""
    negatives: Positive = 5
    """Negative samples per predicted word (word vectors)."""
    subsample: float = Field(default=1e-3, ge=0.0)
    """Frequency above which words are randomly skipped; 0 = off (word vectors)."""
    optimizer: Literal["adamw", "muon", "row_adagrad"] = "adamw"
    """row_adagrad: one adaptive learning rate per embedding row, for word vectors."""
    learning_rate: PositiveFloat = 1e-3
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.98)
    """AdamW's decay rates of the first and second moment."""
    weight_decay: float = Field(default=0.01, ge=0.0)
    clip: float = Field(default=1.0, ge=0.0)
    """Clip the gradient norm to this; 0 = off."""
    schedule: ScheduleName = "cosine"
    """Learning-rate schedule after the warm-up."""
    warmup: NonNegative = 400
    """Steps of linear warm-up."""
    interventions: tuple[JsonIntervention, ...] = ()
    """Interventions that are active in every training step, and in no evaluation."""
    label_smoothing: float = Field(default=0.1, ge=0.0, lt=1.0)
    class_weights: Literal["auto", "none", "balanced"] = "auto"
    """Weight the classes inversely to their frequency (classify); auto: if the most frequent one is 3 times as frequent
    as the rarest."""
    r_drop: float = Field(default=0.0, ge=0.0)
    """Weight of the R-Drop consistency loss; 0 = off."""
    average: Literal["none", "exponential", "last"] = "exponential"
    """Weights that are evaluated and saved: the current ones, their exponential moving average, or the mean of those at
    the last evaluations."""
    average_decay: float = Field(default=0.999, gt=0.0, lt=1.0)
    """Decay of the exponential moving average."""
    average_last: Positive = 5
    """Number of evaluations that `average = "last"` covers."""
    evaluate_every: Positive = 500
    """Steps between evaluations."""
    eval_labels: Positive = 20_000
    """Maximum validation labels per evaluation: tokens, masked tokens (fill) or texts (classify)."""
    eval_texts: Positive = 300
    """Maximum validation texts translated, or questions answered, per evaluation. Labels and texts are sampled evenly
    from the validation text and select the best model; the scores in the card are computed separately."""
    bleu_tokenizer: BleuTokenizerName = "auto"
    """sacreBLEU's tokenizer (translate); auto: by the script of the references."""
    calibration_texts: Positive = 1000
    """Maximum validation texts that alignment, word confidence, temperature and thresholds are fitted on."""
    patience: NonNegative = 0
    """Early stopping: evaluations without improvement; 0 = off."""
    checkpoint_every: NonNegative = 0
    """Steps between checkpoints; 0 = at evaluations, as long as that takes less than 2% of the time."""
    keep_checkpoints: Positive = 2
    """Number of checkpoints kept, in addition to the best model."""
    freeze: NonNegative = 0
    """Number of layers frozen, from the bottom; embeddings are frozen with them."""
    layer_decay: float = Field(default=1.0, gt=0.0, le=1.0)
    """Layer-wise learning rate decay: each layer's rate is this fraction of the layer above; 1 = off."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: mixed precision (autocast)."""
    cuda_graphs: bool = False
    """Capture the step as a CUDA graph for each batch shape and replay it (transformers on a GPU): several times faster
    for small models; for large ones it only holds a second set of activations."""
    compile: bool = False
    """Compile model and loss with torch.compile: faster steps after most of a minute of compilation."""
    workers: NonNegative = 0
    """DataLoader worker processes."""
    shard: bool = False
    """Shard weights and optimizer state over the devices (FSDP2) instead of replicating them."""

    @model_validator(mode="after")
    def _check_combinations(self) -> TrainingRecipe:
        if self.shard and (self.cuda_graphs or self.compile or self.optimizer == "muon"):
            raise ValueError("shard = true cannot be combined with cuda_graphs, compile or optimizer = 'muon'")
        if self.interventions and (self.shard or self.cuda_graphs or self.compile):
            raise ValueError("interventions cannot be combined with shard, cuda_graphs or compile: set those to false")
        if any(isinstance(change, Unmask) for change in self.interventions):
            raise ValueError("interventions: training without the causal mask is model.decoder_causal = false")
        if self.shard and self.freeze:
            raise ValueError("shard = true cannot be combined with freeze: set one of them to its default")
        return self


class Recipe(Config):
    """All settings of a run."""

    task: str
    seed: NonNegative = 1
    start_from: str | None = None
    """A model folder to fine-tune: its weights and its vocabulary."""
    data: DataRecipe
    tokenizer: TokenizerRecipe
    model: dict[str, Any]
    """Model configuration, without the vocabulary size, which comes from the tokenizer."""
    training: TrainingRecipe

    @field_validator("task")
    @classmethod
    def _check_task(cls, name: str) -> str:
        if name not in TASKS:
            raise ValueError(f"unknown task '{name}'; {nearest(name, TASKS)}")
        return name

    @model_validator(mode="after")
    def _check_model(self) -> Recipe:
        if self.data.next_sentence and self.task != "fill":
            raise ValueError(f"data.next_sentence is for fill, not {self.task}")
        if self.training.bleu_tokenizer != "auto" and self.task != "translate":
            raise ValueError(f"training.bleu_tokenizer is for translate, not {self.task}")
        self.model_config_for(vocabulary=8)
        if (self.model["family"] == "word_vectors") != (self.training.optimizer == "row_adagrad"):
            raise ValueError("training.optimizer = 'row_adagrad' is for word vectors (embed), and embed needs it")
        return self

    def model_config_for(self, vocabulary: int, target_vocabulary: int | None = None) -> ModelConfig:
        target = {} if target_vocabulary is None else {"target_vocabulary": target_vocabulary}
        return make_config({**self.model, "vocabulary": vocabulary, **target})


def read_recipe(file: Path) -> dict[str, Any]:
    """Read the settings of a recipe file; `make_recipe` validates them after changes have been applied.

    Its paths are relative to its folder; those returned are absolute.
    """
    if file.exists() and not file.is_file():
        raise UsageError(f"recipe {file} is not a regular file: name a recipe.toml")
    try:
        with file.open("rb") as stream:
            return absolute_paths(tomllib.load(stream), file.parent)
    except FileNotFoundError:
        raise UsageError(f"recipe {file} does not exist") from None
    except OSError as error:
        raise UsageError(f"recipe {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"recipe {file} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"recipe {file} is not valid TOML: {error}") from None


def make_recipe(settings: dict[str, Any]) -> Recipe:
    """Validate settings; the error for an unknown key suggests the nearest known one."""
    try:
        return Recipe.model_validate(settings)
    except ValidationError as error:
        raise UsageError(validation_message(error, known_keys)) from None


SECTIONS: dict[str, tuple[type[Config], ...]] = {
    "data": (DataRecipe,),
    "tokenizer": (TokenizerRecipe,),
    "model": (TransformerConfig, RecurrentConfig, WordVectorsConfig),
    "training": (TrainingRecipe,),
}


def known_keys(path: tuple[str, ...] = ()) -> list[str]:
    """The keys a recipe may have at `path`."""
    if not path:
        return list(Recipe.model_fields)
    return list(dict.fromkeys(key for section in SECTIONS.get(path[0], ()) for key in section.model_fields))


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """The settings that `make_recipe` turns into this recipe, without unset ones: TOML has no null."""
    settings = recipe.model_dump(mode="json", exclude_none=True)
    settings["model"] = {key: value for key, value in settings["model"].items() if value is not None}
    return settings


def to_toml(recipe: Recipe, folder: Path | None = None) -> str:
    """Write the recipe as TOML that `read_recipe` reads back from `folder`; without a folder, files by name only.

    Settings of other tasks are left out, as long as they have their default.
    """
    settings = settings_of(recipe)
    for section, values in (("data", recipe.data), ("tokenizer", recipe.tokenizer), ("training", recipe.training)):
        for key, field in type(values).model_fields.items():
            tasks = TASKS_USING.get(f"{section}.{key}")
            if tasks and recipe.task not in tasks and getattr(values, key) == field.default:
                settings[section].pop(key, None)
    named = map_paths(settings, lambda path: Path(path).name) if folder is None else relative_paths(settings, folder)
    return tomli_w.dumps(named)


TASKS_USING = {
    "data.max_length": ("translate", "classify", "answer"),
    "data.stride": ("answer",),
    "data.next_sentence": ("fill",),
    "tokenizer.joint": ("translate",),
    "tokenizer.subword_dropout": ("translate",),
    "training.context": ("generate", "fill"),
    "training.mask_probability": ("fill",),
    "training.whole_word_masking": ("fill",),
    "training.window": ("embed",),
    "training.negatives": ("embed",),
    "training.subsample": ("embed",),
    "training.class_weights": ("classify",),
    "training.r_drop": ("translate",),
    "training.eval_texts": ("translate", "answer"),
    "training.bleu_tokenizer": ("translate",),
    "training.calibration_texts": ("translate", "classify", "answer"),
}
"""Settings that only these tasks use."""


def absolute_paths(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The settings with the paths of files made absolute: they are relative to `folder`."""
    return map_paths(settings, lambda path: str((folder / path).resolve()))


def relative_paths(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The settings with the paths of files relative to `folder`, so that they reveal no other folders."""
    return map_paths(settings, lambda path: os.path.relpath(path, folder.resolve()))


def map_paths(settings: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Copy the settings with every path of a file changed; values of a wrong type stay, for `make_recipe` to refuse."""
    result = dict(settings)
    if isinstance(result.get("start_from"), str):
        result["start_from"] = change(result["start_from"])
    if isinstance(data := result.get("data"), dict):
        result["data"] = {
            key: [change(path) if isinstance(path, str) else path for path in value]
            if key in ("train", "valid", "test") and isinstance(value, list | tuple)
            else value
            for key, value in data.items()
        }
    return result
