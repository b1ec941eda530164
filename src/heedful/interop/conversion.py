"""Convert models to and from other libraries' formats: `heedful export` and `heedful import`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from heedful.errors import HeedfulError, UsageError, nearest
from heedful.files import new_folder, require_empty
from heedful.generation.decoding_config import DEFAULT_BEAM
from heedful.inference.classifier import Classifier
from heedful.inference.question_answerer import QuestionAnswerer
from heedful.inference.trained_model import TrainedModel
from heedful.interop.ctranslate2_export import Quantization, export_ctranslate2
from heedful.interop.huggingface import choose_layout, export_model
from heedful.interop.huggingface_custom import MODELING
from heedful.interop.huggingface_tokenizer import export_tokenizer, special_token_roles
from heedful.interop.onnx_export import export_onnx
from heedful.interop.padded_heads import with_all_heads
from heedful.interop.word2vec_format import write_word2vec
from heedful.loading import load, load_files
from heedful.model_files import TOKENIZER_FILE, ModelFiles
from heedful.model_folder import HUGGINGFACE_TARGET
from heedful.models.build import Model
from heedful.models.model_config import RecurrentConfig, TransformerConfig, WordVectorsConfig
from heedful.text.special_tokens import END, NEVER_GENERATED, PAD, START

FORMATS = ("huggingface", "ctranslate2", "onnx", "word2vec")
VECTORS = "vectors.txt"


def export(
    model: TrainedModel | str | os.PathLike[str],
    to: str,
    folder: str | os.PathLike[str],
    *,
    quantization: Quantization = "float32",
) -> Path:
    """Export a model, or the model in a folder, for another library: huggingface, ctranslate2, onnx or word2vec.

    Tokenizers are exported too. A setting that the format cannot express is an error, and nothing is written.
    `quantization` "int8" is for ctranslate2.
    """
    if to not in FORMATS:
        raise UsageError(f"unknown format '{to}'; {nearest(to, FORMATS)}")
    if quantization != "float32" and to != "ctranslate2":
        raise UsageError(f"quantization {quantization} is only for ctranslate2, not {to}; leave it out")
    trained = model if isinstance(model, TrainedModel) else load(model, device="cpu")
    with _output_folder(Path(folder)) as output:
        if to == "ctranslate2":
            _to_ctranslate2(trained, output, quantization)
        elif to == "word2vec":  # any model's token embeddings of whole words
            write_word2vec(output / VECTORS, trained.words.words, trained.words.table)
        elif to == "onnx":
            export_onnx(trained.model, output)
            trained.save_tokenizers(output)
        else:
            _to_huggingface(trained, output)
    return Path(folder)


def import_folder(source: str | os.PathLike[str], folder: str | os.PathLike[str]) -> TrainedModel:
    """Convert a folder in a Hugging Face layout to a model folder in heedful's format.

    One in heedful's format is accepted as it is, though files differ from its manifest or are not in it.
    """
    files = ModelFiles(Path(source), verify=False)
    trained = load_files(files, torch.device("cpu"))
    with _output_folder(Path(folder)) as output:
        trained.save(output)
    trained.folder = Path(folder)
    return trained


def _to_huggingface(trained: TrainedModel, folder: Path) -> None:
    model = _calibrated(trained, with_all_heads(trained.model))
    config = model.config
    model_type = choose_layout(model)
    export_model(model, folder, model_type, **_token_ids(trained), **_class_names(trained))
    if trained.task in ("translate", "generate") and not isinstance(config, WordVectorsConfig):
        settings = _generation_settings(config)
        if model_type in MODELING and config.family.endswith("encoder_decoder"):
            settings.pop("max_length", None)  # its `generate` limits each text by the length of its source
        (folder / "generation_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    for tokenizer, path in zip(trained.tokenizers, (folder, folder / HUGGINGFACE_TARGET), strict=False):
        export_tokenizer(tokenizer, path, config, _max_input_tokens(trained))


def _calibrated(trained: TrainedModel, model: Model) -> Model:
    """A copy of a classifier with its temperature folded into the last layer; another model stays as it is."""
    if not isinstance(trained, Classifier) or trained.settings.temperature == 1:
        return model
    calibrated = deepcopy(model)
    with torch.no_grad():
        for weight in calibrated.get_submodule("heads.sequence_class.classes").parameters():
            weight.div_(trained.settings.temperature)
    return calibrated


def _token_ids(trained: TrainedModel) -> dict[str, Any]:
    """Ids of special tokens in config.json; an encoder only pads."""
    family = trained.model.config.family.removeprefix("recurrent_")
    if family == "encoder":
        roles = special_token_roles(trained.tokenizer, family) if trained.tokenizers else {}
        return {"pad_token_id": trained.tokenizer.tokens.index(roles["pad_token"]) if roles else PAD}
    ids: dict[str, Any] = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
    return ids if family == "decoder" else {**ids, "decoder_start_token_id": START, "forced_eos_token_id": None}


def _class_names(trained: TrainedModel) -> dict[str, Any]:
    if not isinstance(trained, Classifier):
        return {}
    names = dict(enumerate(trained.settings.names))
    kind = {"problem_type": "multi_label_classification"} if trained.settings.multi_label else {}
    return {"id2label": names, "label2id": {name: index for index, name in names.items()}, **kind}


def _max_input_tokens(trained: TrainedModel) -> int | None:
    """Maximum tokens that the model reads, special tokens included; None: unlimited."""
    if isinstance(trained, Classifier):
        return trained.settings.max_length
    if isinstance(trained, QuestionAnswerer):
        return trained.settings.max_tokens
    length: int | None = getattr(trained.model.config, "max_length", None)
    return length


def _generation_settings(config: TransformerConfig | RecurrentConfig) -> dict[str, Any]:
    """heedful's default search as generation settings of transformers, which give the same texts."""
    special = {"pad_token_id": PAD, "eos_token_id": END, "suppress_tokens": NEVER_GENERATED}
    limit = {"max_length": config.max_length} if isinstance(config, TransformerConfig) else {}
    settings = {**special, **limit, "do_sample": False, "renormalize_logits": True}
    if not config.family.endswith("encoder_decoder"):
        return {**settings, "bos_token_id": END}  # what an empty prompt begins with
    beam = {"num_beams": DEFAULT_BEAM, "length_penalty": 1.0, "early_stopping": True}
    return {**settings, **beam, "bos_token_id": START, "decoder_start_token_id": START, "forced_eos_token_id": None}


def _to_ctranslate2(trained: TrainedModel, folder: Path, quantization: Quantization) -> None:
    if not trained.tokenizers:
        raise UsageError(f"{trained.name} has no {TOKENIZER_FILE}; ctranslate2 needs a vocabulary")
    names = [tokenizer.tokens for tokenizer in trained.tokenizers]
    export_ctranslate2(trained.model, folder, names, quantization=quantization)
    trained.save_tokenizers(folder)


@contextmanager
def _output_folder(folder: Path) -> Iterator[Path]:
    """A new folder that appears complete or not at all; one with files in it is an error."""
    require_empty(folder)
    try:
        with new_folder(folder) as temporary:
            yield temporary
    except (OSError, SafetensorError) as error:
        raise HeedfulError(f"{folder} cannot be written: {error}") from None
