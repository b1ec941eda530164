"""First-use conversion of a model for CTranslate2: converted, checked against torch, stored.

The first CPU request that CTranslate2 can serve writes the converted model to `engines/` in the model's folder, or to
the user's cache (`HEEDFUL_CACHE`, default ~/.cache/heedful) if that is not writable. The SHA-256 of the weights is
stored with it: changed weights are converted again. A conversion whose greedy texts differ from torch's is not used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from heedful.errors import HeedfulError
from heedful.files import new_folder
from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.ctranslate2_engine import CTranslate2Engine
from heedful.generation.search.decoding_batch import masked_log_softmax
from heedful.generation.search.settings import SearchSettings
from heedful.interop.ctranslate2_export import Quantization, export_ctranslate2, import_ctranslate2
from heedful.text.special_tokens import END, SPECIAL_TOKENS, START

RECORD = "checked.json"
CHECKED_TEXTS, CHECKED_LENGTH = 8, 12
"""A conversion is checked on so many random texts of so many tokens."""
TOLERANCE = {"float32": 1e-3, "int8": 0.25}
"""Largest difference from torch's log-probability per token, averaged over a text."""


def converted_engine(
    model: Any, vocabularies: Sequence[Sequence[str]], folder: Path | None, quantization: Quantization = "float32"
) -> CTranslate2Engine:
    """The model in CTranslate2, converted and checked unless that was done before; HeedfulError if it fails.

    `vocabularies`: the tokens of the source's and the target's tokenizer, or of the one.
    """
    digest = weights_digest(model)
    for path in _paths(folder, digest, quantization):
        record = _read_record(path, digest)
        if record is None:
            try:
                record = _convert(model, vocabularies, path, quantization, digest)
            except OSError:
                continue  # not writable
        if record["problem"]:
            raise HeedfulError(f"{path}: {record['problem']}; torch is used instead")
        return CTranslate2Engine(path, vocabularies, model.config, quantization)
    raise HeedfulError(
        "neither the model's folder nor the cache is writable for the converted model; torch is used instead"
    )


def weights_digest(model: Any) -> str:
    """SHA-256 of the configuration and the weights in memory, which may differ from the file's."""
    digest = sha256(model.config.model_dump_json().encode())
    for name, weight in model.state_dict().items():
        digest.update(name.encode())
        digest.update(weight.detach().float().cpu().contiguous().numpy())
    return digest.hexdigest()


def _paths(folder: Path | None, digest: str, quantization: str) -> list[Path]:
    cache = Path(os.environ.get("HEEDFUL_CACHE") or Path.home() / ".cache" / "heedful")
    cached = cache / "engines" / f"{digest[:24]}-{quantization}"
    return [cached] if folder is None else [folder / "engines" / f"ctranslate2-{quantization}", cached]


def _read_record(path: Path, digest: str) -> dict[str, Any] | None:
    """The record of the conversion at this path, if it is of these weights and of the installed version."""
    try:
        record = json.loads((path / RECORD).read_text(encoding="utf-8"))
        same = (record["weights"], record["ctranslate2"]) == (digest, import_ctranslate2().__version__)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if same else None


def _convert(
    model: Any, vocabularies: Sequence[Sequence[str]], path: Path, quantization: Quantization, digest: str
) -> dict[str, Any]:
    with new_folder(path) as temporary:
        export_ctranslate2(model, temporary, vocabularies, quantization=quantization)
        engine = CTranslate2Engine(temporary, vocabularies, model.config, quantization)
        record = {
            "weights": digest,
            "ctranslate2": import_ctranslate2().__version__,
            "sample": CHECKED_TEXTS,
            "problem": conversion_problem(model, engine, quantization),
        }
        (temporary / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return record


@torch.inference_mode()
def conversion_problem(model: Any, engine: CTranslate2Engine, quantization: Quantization) -> str | None:
    """How the engine's greedy texts differ from torch's; None if they agree.

    With float32 each token must be torch's own choice; with int8 only the probabilities must be close.
    """
    vocabulary, limit = model.config.vocabulary, 2 * CHECKED_LENGTH
    first = min(len(SPECIAL_TOKENS), vocabulary - 1)
    shape, generator = (CHECKED_TEXTS, CHECKED_LENGTH), torch.Generator().manual_seed(0)
    texts = torch.randint(first, vocabulary, shape, generator=generator).tolist()
    request = SearchRequest(texts, SearchSettings(max_length=limit, token_log_probabilities=False))
    is_translator = model.config.family == "encoder_decoder"
    results = engine.translate(request) if is_translator else engine.generate(request)
    differences, other_texts = [], 0
    for source, (hypothesis,) in zip(texts, results, strict=True):
        generated = [*hypothesis.tokens, END][:limit]
        scores = _teacher_forced_scores(model, source, generated)
        steps = scores.gather(1, torch.tensor(generated)[:, None])[:, 0]
        other_texts += int((scores.max(1).values - steps > TOLERANCE["float32"]).any())
        differences.append(abs(float(steps.mean()) - hypothesis.log_probability / len(generated)))
    if quantization == "float32" and other_texts:
        return f"ctranslate2's text differs from torch's for {other_texts} of {CHECKED_TEXTS} samples"
    if max(differences) > TOLERANCE[quantization]:
        return f"ctranslate2's log-probabilities differ from torch's by up to {max(differences):.2g} per token"
    return None


def _teacher_forced_scores(model: Any, source: list[int], generated: list[int]) -> torch.Tensor:
    """Torch's log-probabilities at each step of a generated text."""
    if model.config.family == "encoder_decoder":
        logits = model(torch.tensor([[*source, END]]), torch.tensor([[START, *generated[:-1]]]))[0]
    else:
        logits = model(torch.tensor([[*source, *generated[:-1]]]))[0, len(source) - 1 :]
    return masked_log_softmax(logits)
