"""A recipe: everything that decides what a training run does, in one TOML file.

With the same recipe, data and machine, the same model comes out. `train` writes the recipe it used,
whether you gave one or left the choices to it, into the run's folder.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from heedful.config import Config, validation_message
from heedful.errors import UsageError, nearest
from heedful.models.model_config import ModelConfig, RecurrentConfig, TransformerConfig, WordVectorsConfig
from heedful.models.presets import make_config
from heedful.text.tokenizer import TokenizerConfig
from heedful.training.optim.schedules import ScheduleName
from heedful.training.tasks import TASKS

RECIPE = "recipe.toml"


class DataRecipe(Config):
    """Which text, and what of it is used."""

    train: tuple[str, ...]
    valid: tuple[str, ...] = ()
    """Empty: a share of the training text is held out."""
    test: tuple[str, ...] = ()
    held_out: float = Field(default=0.02, gt=0.0, lt=0.5)
    max_length: PositiveInt = 256
    """Pairs with more tokens on a side are left out, and counted; labelled texts are cut off, and counted;
    questions and passages are read in windows of so many."""
    columns: tuple[str, ...] = ()
    """Of labelled texts, where their names are unusual: one or two of texts, then that of labels."""
    stride: NonNegativeInt = 128
    """Tokens from one window of a long passage to the next (answer); 0: no windows."""
    on_bad_line: Literal["fail", "skip"] = "fail"
    next_sentence: bool = False
    """Also learn whether one text follows another (fill); documents then end at blank lines."""


class TokenizerRecipe(TokenizerConfig):
    """How text becomes tokens."""

    joint: bool = True
    """One vocabulary for source and target."""
    sample: PositiveInt = 50_000_000
    """Characters of text the tokenizer learns from, at most."""
    subword_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Chance that a token is split into its parts: subword regularisation."""


class TrainingRecipe(Config):
    """How the weights are found."""

    steps: PositiveInt
    batch_tokens: PositiveInt = 4096
    """Tokens in a batch, padding and both sides included."""
    accumulate: PositiveInt = 1
    """Batches whose gradients are added up before each step."""
    context: PositiveInt = 256
    """Tokens in a window of running text (generate, fill)."""
    mask_probability: float = Field(default=0.15, gt=0.0, lt=0.9)
    """Share of the tokens that are to be found again (fill)."""
    whole_word_masking: bool = False
    """Hide all pieces of a word or none (fill)."""
    window: PositiveInt = 5
    """Words on each side that a word may predict, at most (word vectors)."""
    negatives: PositiveInt = 5
    """Words drawn against each that is predicted (word vectors)."""
    subsample: float = Field(default=1e-3, ge=0.0)
    """Words with a larger share of the text than this are passed over now and then; 0: never (word vectors)."""
    optimizer: Literal["adamw", "muon", "rows"] = "adamw"
    """rows: a rate for each row, after AdaGrad, for tables of word vectors."""
    learning_rate: PositiveFloat = 1e-3
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = Field(default=0.01, ge=0.0)
    clip: float = Field(default=1.0, ge=0.0)
    """Longest gradient; 0: no limit."""
    schedule: ScheduleName = "cosine"
    warmup: NonNegativeInt = 400
    label_smoothing: float = Field(default=0.1, ge=0.0, lt=1.0)
    class_weights: Literal["auto", "none", "balanced"] = "auto"
    """Of a classifier: whether texts of rare classes or labels count for more; auto: where the commonest has 3 times as
    many."""
    r_drop: float = Field(default=0.0, ge=0.0)
    average: Literal["none", "exponential", "last"] = "exponential"
    average_decay: float = Field(default=0.999, gt=0.0, lt=1.0)
    average_last: PositiveInt = 5
    evaluate_every: PositiveInt = 500
    eval_labels: PositiveInt = 20_000
    """Validation labels predicted at each evaluation, at most: tokens, hidden tokens (fill), texts (classify)."""
    eval_texts: PositiveInt = 300
    """Validation texts translated, and questions answered, at each evaluation, at most. Both are taken evenly from all
    over the validation text, and choose the best model; its scores in the card are worked out anew."""
    patience: NonNegativeInt = 0
    """Evaluations without a better score before stopping; 0: never stop early."""
    checkpoint_every: NonNegativeInt = 0
    """Steps between checkpoints; 0: one at every evaluation, as long as that takes less than 2% of the time."""
    keep_checkpoints: PositiveInt = 2
    """Checkpoints kept; the best model is kept besides."""
    freeze: NonNegativeInt = 0
    """Layers, from the bottom, whose weights stay as they are; with any, token vectors and positions do, too."""
    layer_decay: float = Field(default=1.0, gt=0.0, le=1.0)
    """Each layer learns at this share of the rate of the layer above it; 1: all alike."""
    precision: Literal["float32", "bfloat16"] = "float32"
    cuda_graphs: bool = False
    """Record the step once for each shape of batch and replay it (GPU, transformers): for small models several times
    faster, for large ones a second set of activations held for nothing."""
    compile: bool = False
    """Compile model and loss by torch.compile: most of a minute at the start, faster steps after."""
    workers: NonNegativeInt = 0
    """Processes that prepare batches ahead of the model."""
    shard: bool = False
    """Of several devices, each keeps a part of the weights and their optimizer state (FSDP2), instead of all."""

    @model_validator(mode="after")
    def _parts_go_together(self) -> TrainingRecipe:
        if self.shard and (self.cuda_graphs or self.compile or self.optimizer == "muon"):
            raise ValueError("shard = true goes with none of record, compile and muon (which needs its matrices whole)")
        if self.shard and self.freeze:
            raise ValueError("freeze and shard = true do not go together: a frozen model's gradients are small anyway")
        return self


class Recipe(Config):
    """The whole of it."""

    task: str
    seed: NonNegativeInt = 1
    start_from: str | None = None
    """A model folder: training goes on from its weights, with its vocabulary."""
    data: DataRecipe
    tokenizer: TokenizerRecipe
    model: dict[str, Any]
    """Settings of the model's configuration; the vocabulary comes from the tokenizer."""
    training: TrainingRecipe

    @field_validator("task")
    @classmethod
    def _task_is_known(cls, name: str) -> str:
        if name not in TASKS:
            raise ValueError(f"unknown task '{name}'; {nearest(name, TASKS)}")
        return name

    @model_validator(mode="after")
    def _model_can_be_built(self) -> Recipe:
        if self.data.next_sentence and self.task != "fill":
            raise ValueError(f"data.next_sentence (--next-sentence) is for fill, not {self.task}")
        self.model_config_for(vocabulary=8)
        if (self.model["family"] == "word_vectors") != (self.training.optimizer == "rows"):
            raise ValueError("optimizer 'rows' is for tables of word vectors, and they are for no other")
        return self

    def model_config_for(self, vocabulary: int, target_vocabulary: int | None = None) -> ModelConfig:
        target = {} if target_vocabulary is None else {"target_vocabulary": target_vocabulary}
        return make_config({**self.model, "vocabulary": vocabulary, **target})


def read_recipe(file: Path) -> dict[str, Any]:
    """The settings in a recipe file, not yet checked: `--set` may still change them."""
    try:
        with file.open("rb") as stream:
            return tomllib.load(stream)
    except FileNotFoundError:
        raise UsageError(f"recipe {file} does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"recipe {file}: {error}") from None


def make_recipe(settings: dict[str, Any]) -> Recipe:
    """A checked recipe; a wrong key anywhere in it names the nearest right one."""
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
    return [key for section in SECTIONS.get(path[0], ()) for key in section.model_fields]


def check_keys(settings: dict[str, Any]) -> None:
    """Refuse a key that no recipe can have, before anything is read or run."""
    for name, value in settings.items():
        if name not in Recipe.model_fields:
            raise UsageError(f"unknown setting '{name}'; {nearest(name, Recipe.model_fields)}")
        for key in value if isinstance(value, dict) else ():
            if key not in known_keys((name,)):
                elsewhere = [f"{section}.{key}" for section in SECTIONS if key in known_keys((section,))]
                hint = nearest(elsewhere[0], elsewhere) if elsewhere else nearest(key, known_keys((name,)))
                raise UsageError(f"unknown setting '{name}.{key}'; {hint}")


def apply_overrides(settings: dict[str, Any], changes: list[str]) -> dict[str, Any]:
    """`["model.width=256"]` put into the settings; values are read as TOML, bare words as text."""
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in settings.items()}
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals:
            raise UsageError(f"--set takes section.key=value, got '{change}'")
        section, dot, key = path.strip().partition(".")
        if section not in Recipe.model_fields:
            raise UsageError(f"unknown setting '{path}'; {nearest(section, Recipe.model_fields)}")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        if dot:
            result.setdefault(section, {})[key] = value
        else:
            result[section] = value
    return result


def merge_settings(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The settings with those of `changes` in their place."""
    return settings | {
        name: {**settings.get(name, {}), **value} if isinstance(value, dict) else value
        for name, value in changes.items()
    }


def to_toml(recipe: Recipe) -> str:
    """The recipe as a file that `read_recipe` gives back unchanged."""
    settings = recipe.model_dump(mode="json")
    tables = {name: value for name, value in settings.items() if isinstance(value, dict)}
    lines = [f"{name} = {_toml(value)}" for name, value in settings.items() if name not in tables and value is not None]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items() if value is not None)]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(part) for part in value) + "]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
