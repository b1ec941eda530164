"""First-use conversion of a model for CTranslate2: convert, check against torch, store in the user's cache.

An engine is used only if this user converted it from these weights, this vocabulary and this version, and if each of
its files still has its SHA-256: the library loads corrupt files without an error, or crashes on them. Anything else is
converted again. Engines are never read from a model's folder, which may come from an untrusted source. A conversion
whose greedy texts differ from torch's is not used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch

from heedful.errors import CheckpointError, HeedfulError
from heedful.files import MANIFEST, new_folder, read_manifest, verify_file, write_manifest
from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.ctranslate2_engine import CTranslate2Engine
from heedful.generation.search.decoding_batch import masked_log_softmax
from heedful.generation.search.settings import SearchSettings
from heedful.interop.ctranslate2_export import Quantization, export_ctranslate2, import_ctranslate2
from heedful.models.decoder import Decoder
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.text.special_tokens import END, SPECIAL_TOKENS, START
from heedful.untrusted_files import parse_json_object, read_bounded
from heedful.user_cache import cache_folder, evict, is_own_folder, private_folder

RECORD = "checked.json"
CONVERSION = 2
"""Version of the export and its check: engines of other versions are not used."""
MAX_CACHE_BYTES = 8 << 30
"""Maximum size of all engines of a user; the least recently used are deleted."""
CHECKED_TEXTS, CHECKED_LENGTH = 8, 12
"""Number and length in tokens of the random texts that a conversion is checked on."""
TOLERANCE = {"float32": 1e-3, "int8": 0.25}
"""Largest difference from torch's log-probability per token, averaged over a text."""


def converted_engine(
    model: Decoder | EncoderDecoder, vocabularies: Sequence[Sequence[str]], quantization: Quantization = "float32"
) -> CTranslate2Engine:
    """The model in CTranslate2, converted and checked at first use; HeedfulError if that fails.

    `vocabularies`: the tokens of the source's and the target's tokenizer, or of a shared one.
    """
    converted = ConvertedModel(model, vocabularies, quantization)
    converted.require()
    return CTranslate2Engine(converted.read_files, vocabularies, model.config, quantization)


class ConvertedModel:
    """The files of a model converted for CTranslate2, in the user's cache."""

    def __init__(
        self, model: Decoder | EncoderDecoder, vocabularies: Sequence[Sequence[str]], quantization: Quantization
    ) -> None:
        self.model, self.vocabularies, self.quantization = model, vocabularies, quantization
        self.engines = private_folder(cache_folder() / "engines")
        self.path = self.engines / f"{self.key[:32]}-{quantization}"

    @cached_property
    def key(self) -> str:
        """SHA-256 of everything that a conversion depends on."""
        versions = [CONVERSION, import_ctranslate2().__version__]
        key = sha256(weights_digest(self.model).encode())
        key.update(json.dumps([*versions, self.quantization, self.vocabularies]).encode())
        return key.hexdigest()

    def require(self) -> None:
        """Convert the model at first use; raise HeedfulError if the conversion is not usable."""
        record = self._record() or self._convert()
        if record["problem"]:
            raise HeedfulError(f"{self.path}: {record['problem']}; torch is used instead")

    def read_files(self, again: bool = False) -> dict[str, bytes]:
        """The verified content of each of the engine's files; a damaged engine is converted again."""
        try:
            if again or self._record() is None:
                raise CheckpointError("not converted")
            return self._verified_files()
        except (CheckpointError, OSError):
            self._convert()
            self.require()
            return self._verified_files()

    def _verified_files(self) -> dict[str, bytes]:
        files = {}
        for name, checksum in read_manifest(self.path).items():
            files[name] = read_bounded(self.path / name, checksum.size)
            verify_file(self.path / name, checksum, files[name])
        if RECORD not in files:
            raise CheckpointError(f"{self.path / MANIFEST} does not list {RECORD}")
        os.utime(self.path)  # marks it as recently used
        return files

    def _record(self) -> dict[str, Any] | None:
        """The record of this model's conversion, if this user made one."""
        file = self.path / RECORD
        try:
            record = parse_json_object(read_bounded(file), file) if is_own_folder(self.path) else {}
        except (OSError, CheckpointError):
            return None
        return record if record.get("key") == self.key and "problem" in record else None

    def _convert(self) -> dict[str, Any]:
        try:
            with new_folder(self.path) as temporary:
                temporary.chmod(0o700)
                export_ctranslate2(self.model, temporary, self.vocabularies, quantization=self.quantization)
                names = sorted(file.name for file in temporary.iterdir())
                files = {name: (temporary / name).read_bytes() for name in names}
                engine = CTranslate2Engine(lambda _: files, self.vocabularies, self.model.config, self.quantization)
                problem = conversion_problem(self.model, engine, self.quantization)
                record = {"key": self.key, "sample": CHECKED_TEXTS, "problem": problem}
                (temporary / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
                write_manifest(temporary, [*names, RECORD])
            evict(self.engines, MAX_CACHE_BYTES, keep=self.path)
        except OSError as error:
            raise HeedfulError(
                f"{self.path}: the converted model cannot be written ({error.strerror}); torch is used instead"
            ) from None
        return record


def weights_digest(model: Decoder | EncoderDecoder) -> str:
    """SHA-256 of the configuration and the weights in memory, which may differ from the file's."""
    digest = sha256(model.config.model_dump_json().encode())
    for name, weight in model.state_dict().items():
        digest.update(name.encode())
        digest.update(weight.detach().float().cpu().contiguous().numpy())
    return digest.hexdigest()


@torch.inference_mode()
def conversion_problem(
    model: Decoder | EncoderDecoder, engine: CTranslate2Engine, quantization: Quantization
) -> str | None:
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
    differences, differing = [], 0
    for source, (hypothesis,) in zip(texts, results, strict=True):
        generated = [*hypothesis.tokens, END][:limit]
        scores = _teacher_forced_scores(model, source, generated)
        steps = scores.gather(1, torch.tensor(generated)[:, None])[:, 0]
        differing += int(not (scores.max(1).values - steps <= TOLERANCE["float32"]).all())  # also if a score is NaN
        differences.append(abs(float(steps.mean()) - hypothesis.log_probability / len(generated)))
    if quantization == "float32" and differing:
        return f"ctranslate2's text differs from torch's for {differing} of {CHECKED_TEXTS} samples"
    if not all(difference <= TOLERANCE[quantization] for difference in differences):
        return f"ctranslate2's log-probabilities differ from torch's by up to {max(differences):.2g} per token"
    return None


def _teacher_forced_scores(model: Decoder | EncoderDecoder, source: list[int], generated: list[int]) -> torch.Tensor:
    """Torch's log-probabilities at each step of a generated text."""
    if model.config.family == "encoder_decoder":
        logits = model(torch.tensor([[*source, END]]), torch.tensor([[START, *generated[:-1]]]))[0]
    else:
        logits = model(torch.tensor([[*source, *generated[:-1]]]))[0, len(source) - 1 :]
    return masked_log_softmax(logits)
