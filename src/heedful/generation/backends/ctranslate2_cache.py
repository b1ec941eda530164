"""Converted once, checked, kept: where a model's CTranslate2 form lives, and how it earns its place.

It lies in `engines/` of the model's folder (or in the user's cache, if nothing can be written there), together with
the SHA-256 of the weights it was made from: weights that change are converted again. Before its first use it has to
give the texts that torch gives.
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
from heedful.generation.backends.ctranslate2_backend import CTranslate2, unfit
from heedful.generation.search.decode_loop import masked_log_softmax
from heedful.interop.ctranslate2_export import Quantisation, export_ctranslate2, import_ctranslate2
from heedful.text.special_tokens import END, NEVER_GENERATED, SPECIAL_TOKENS, START

RECORD = "checked.json"
TEXTS, LENGTH = 8, 12
"""The sample: so many random texts of so many tokens."""
TOLERANCE = {"float32": 1e-3, "int8": 0.25}
"""How far the log-probability of a token may lie from torch's, on average over the sample."""


def ctranslate2_engine(
    model: Any, vocabularies: Sequence[Sequence[str]], folder: Path | None, quantisation: Quantisation = "float32"
) -> CTranslate2:
    """The engine for this model, converted and checked if that has not been done before.

    `vocabularies`: the tokens of the source's and the target's tokenizer, or of the one. What CTranslate2 cannot
    serve is refused, and a conversion that does not give what torch gives.
    """
    if reason := unfit(model):
        raise HeedfulError(reason)
    digest = weights_digest(model)
    for place in _places(folder, digest, quantisation):
        record = _record(place, digest)
        if record is None:
            try:
                record = _convert(model, vocabularies, place, quantisation, digest)
            except OSError:
                continue  # nothing can be written here
        if record["problem"]:
            raise HeedfulError(f"{place}: {record['problem']}; torch is used instead")
        return CTranslate2(place, vocabularies, model.config, quantisation)
    raise HeedfulError("nowhere to write the converted model: neither its folder nor the cache; torch is used instead")


def weights_digest(model: Any) -> str:
    """SHA-256 of the weights in memory: those of a file may have been changed since it was read."""
    digest = sha256(model.config.model_dump_json().encode())
    for name, weight in model.state_dict().items():
        digest.update(name.encode())
        digest.update(weight.detach().float().cpu().contiguous().numpy())
    return digest.hexdigest()


def _places(folder: Path | None, digest: str, quantisation: str) -> list[Path]:
    cache = Path(os.environ.get("HEEDFUL_CACHE") or Path.home() / ".cache" / "heedful")
    kept = cache / "engines" / f"{digest[:24]}-{quantisation}"
    return [kept] if folder is None else [folder / "engines" / f"ctranslate2-{quantisation}", kept]


def _record(place: Path, digest: str) -> dict[str, Any] | None:
    """What is known of the conversion at this place, if it is of these weights and for this version."""
    try:
        record = json.loads((place / RECORD).read_text(encoding="utf-8"))
        same = (record["weights"], record["ctranslate2"]) == (digest, import_ctranslate2().__version__)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if same else None


def _convert(
    model: Any, vocabularies: Sequence[Sequence[str]], place: Path, quantisation: Quantisation, digest: str
) -> dict[str, Any]:
    with new_folder(place) as aside:
        export_ctranslate2(model, aside, vocabularies, quantisation=quantisation, suppressed=NEVER_GENERATED)
        problem = difference(model, CTranslate2(aside, vocabularies, model.config, quantisation), quantisation)
        record = {"weights": digest, "ctranslate2": import_ctranslate2().__version__, "sample": TEXTS, "problem": problem}
        (aside / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return record


@torch.inference_mode()
def difference(model: Any, engine: CTranslate2, quantisation: Quantisation) -> str | None:
    """What is wrong with the engine's greedy texts, by torch's account of them; None: nothing.

    Of float32 each token has to be the one torch would choose, too. Numbers of int8 are coarser: there only the
    probabilities have to be near.
    """
    vocabulary, limit = model.config.vocabulary, 2 * LENGTH
    first = min(len(SPECIAL_TOKENS), vocabulary - 1)
    drawn = torch.randint(first, vocabulary, (TEXTS, LENGTH), generator=torch.Generator().manual_seed(0)).tolist()
    if model.config.family == "encoder_decoder":
        found = engine.translate_ids(drawn, beam=1, at_most=[limit] * TEXTS, each_token=False)
    else:
        found = engine.generate_ids(drawn, limit=limit)
    gaps, strays = [], 0
    for source, (text,) in zip(drawn, found, strict=True):
        wrote = [*text.tokens, END][:limit]
        scores = _forced(model, source, wrote)
        steps = scores.gather(1, torch.tensor(wrote)[:, None])[:, 0]
        strays += int((scores.max(1).values - steps > TOLERANCE["float32"]).any())
        gaps.append(abs(float(steps.mean()) - text.log_probability / len(wrote)))
    if quantisation == "float32" and strays:
        return f"ctranslate2 gave another text than torch for {strays} of {TEXTS} samples"
    if max(gaps) > TOLERANCE[quantisation]:
        return f"ctranslate2's log-probabilities lie up to {max(gaps):.2g} a token from torch's"
    return None


def _forced(model: Any, source: list[int], wrote: list[int]) -> torch.Tensor:
    """Log-probabilities at each step of a text that is given."""
    if model.config.family == "encoder_decoder":
        logits = model(torch.tensor([[*source, END]]), torch.tensor([[START, *wrote[:-1]]]))[0]
    else:
        logits = model(torch.tensor([[*source, *wrote[:-1]]]))[0, len(source) - 1 :]
    return masked_log_softmax(logits)
