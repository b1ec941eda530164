"""One flipped bit anywhere in a model folder or its engine is detected, or changes no answer."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.errors import HeedfulError
from heedful.generation.input_splitting import InputSplitting
from heedful.inference.translator import Translator
from heedful.inspection.attention_alignment import default_alignment
from heedful.inspection.confidence import Confidence
from heedful.text.special_tokens import END
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

TEXTS = ["the cat sat on a mat", "a dog", "12 small mats, the dog and the cat", ""]


def make_translator() -> Translator:
    """A model sure enough of itself that texts differ and end, with every file a translator can have."""
    torch.manual_seed(1)
    source, target = (
        Tokenizer.train([text * 3 for text in TEXTS], TokenizerConfig(kind="characters", vocabulary=size))
        for size in (30, 25)
    )
    size = {"vocabulary": len(source), "target_vocabulary": len(target), "width": 32, "heads": 2, "layers": 1}
    model = heedful.build("laptop-translator", **size, tie_output=False, output_bias=True).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.15)
        model.heads.next_token.bias[END] += 1.5
    confidence, splitting = Confidence(slope=0.8, shift=0.1), InputSplitting(max_tokens=40, multi_sentence_share=0.5)
    return Translator(
        model, (source, target), alignment=default_alignment(model), confidence=confidence, splitting=splitting
    )


def answers(folder: Path) -> list[Any]:
    """Translations by CTranslate2, with word probabilities and alignments."""
    translator = heedful.load(folder, device="cpu")
    results = translator.iter_translate(TEXTS, engine="ctranslate2", alignments=True, beam=2, max_length=20)  # type: ignore[union-attr]
    return [result.to_json() for result in results]


@pytest.mark.parametrize("flips", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_no_flipped_bit_changes_an_answer_unnoticed(
    flips: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    folder = make_translator().save(tmp_path / "model")
    expected = answers(folder)
    (engine,) = (tmp_path / "cache" / "engines").iterdir()
    files = [*sorted(folder.iterdir()), *sorted(engine.iterdir())]
    assert len(files) == 8 + 5
    generator, outcomes = random.Random(0), Counter[str]()
    for number in range(flips):
        file = files[number % len(files)]
        content = file.read_bytes()
        damaged = bytearray(content)
        damaged[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        file.write_bytes(damaged)
        try:
            outcome = "same answers" if answers(folder) == expected else f"{file.name}: WRONG"
        except HeedfulError:
            outcome = "detected"
        outcomes[outcome] += 1
        if file.parent == engine:
            assert file.read_bytes() == content, "converted again"
        file.write_bytes(content)
    print(dict(outcomes))
    assert {*outcomes} <= {"same answers", "detected"}, outcomes
    assert outcomes["detected"] > flips // 3


def test_an_engine_in_the_models_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes with the folder, from its author."""
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    folder = make_translator().save(tmp_path / "model")
    expected = answers(folder)
    (engine,) = (tmp_path / "cache" / "engines").iterdir()
    shutil.copytree(engine, folder / "engines" / "ctranslate2-float32")
    (folder / "engines" / "ctranslate2-float32" / "model.bin").write_bytes(b"a stranger's")
    (tmp_path / "elsewhere").mkdir()
    (folder / "engines" / "ctranslate2-int8").symlink_to(tmp_path / "elsewhere")
    assert answers(folder) == expected
    assert not [*(tmp_path / "elsewhere").iterdir()]
