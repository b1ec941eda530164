"""Models that no layout of transformers expresses: the exported folder carries the code that builds them."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import heedful
from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.torch_backend import TorchBackend
from heedful.generation.search.settings import SearchSettings
from heedful.inference.trained_model import TrainedModel
from heedful.interop.conversion import import_folder
from heedful.interop.huggingface_custom import CODE
from heedful.loading import wrap_model
from heedful.objectives.answer_span_loss import span_logits
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

pytestmark = pytest.mark.usefixtures("quiet_transformers")

SMALL: dict[str, Any] = {"vocabulary": 40, "width": 16, "heads": 4, "layers": 2, "max_length": 24}
DESIGNS: dict[str, tuple[str, dict[str, Any]]] = {
    "rotary": ("laptop-translator", {"positions": "rotary", "decoder_layers": 1}),
    "two vocabularies, untied, rms": (
        "laptop-translator",
        {"positions": "rotary", "target_vocabulary": 30, "tie_output": False, "output_bias": True, "norm": "rms"},
    ),
    "alibi, gated, shared keys": ("laptop-translator", {"positions": "alibi", "gated": True, "key_value_heads": 2}),
    "window, wide values, no scaling": (
        "laptop-translator",
        {"window": 3, "value_width": 6, "score": "dot", "norm_order": "post", "position_layout": "halves"},
    ),
    "alibi writer": ("laptop-writer", {"positions": "alibi", "bias": False}),
    "windowed writer": ("laptop-writer", {"window": 4, "output_bias": True, "head_width": 6}),
    "learned writer, post-norm": ("laptop-writer", {"positions": "learned", "norm_order": "post"}),
    "reader": ("laptop-reader", {"positions": "rotary", "activation": "gelu", "tie_output": False}),
}
TEXTS = ["a small text", "another text, that is longer", "one"]


@torch.no_grad()
def perturbed(model: Any) -> Any:
    """Perturb every weight: initial biases of 0 and gains of 1 would hide mistakes."""
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight), alpha=0.2)
    return model.eval()


def load_exported(folder: Path) -> Any:
    """Load a folder by the class that its config.json names."""
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    auto_class = next(name for name in reversed(config.auto_map) if name != "AutoConfig")
    return getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True)


@pytest.mark.parametrize("design", DESIGNS)
def test_modeling_files_keep_logits_with_padding(design: str, tmp_path: Path) -> None:
    preset, settings = DESIGNS[design]
    model = perturbed(heedful.build(preset, **{**SMALL, **settings}))
    heedful.export(wrap_model(model), "huggingface", tmp_path / "there")
    theirs, back = load_exported(tmp_path / "there"), heedful.load(tmp_path / "there").model
    assert type(theirs).__module__.startswith("transformers_modules.")
    source, target, lengths = torch.randint(6, 30, (2, 9)), torch.randint(6, 30, (2, 7)), torch.tensor([9, 5])
    real = (torch.arange(9) < lengths[:, None]).long()
    with torch.no_grad():
        if model.config.family == "encoder_decoder":
            output = theirs(input_ids=source, attention_mask=real, decoder_input_ids=target).logits
            expected, again = model(source, target, lengths), back(source, target, lengths)
        elif model.config.family == "decoder":  # padded before the text, as `generate` needs it
            output, ours = theirs(input_ids=source, attention_mask=real.flip(1)).logits[1, 4:], source[1:, 4:]
            expected, again = model(ours)[0], back(ours)[0]
        else:
            output = theirs(input_ids=source, attention_mask=real).logits[1, :5]
            expected, again = (
                reader.apply_head("masked_token", reader(source, lengths))[1, :5] for reader in (model, back)
            )
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(again, expected)


@pytest.fixture
def exported_translator(translator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The trained translator, which has a layout, exported with modeling files."""
    monkeypatch.setattr("heedful.interop.conversion.choose_layout", lambda model: "heedful")
    return heedful.export(translator, "huggingface", tmp_path / "there")


def test_trained_translator_gives_the_same_texts(
    translator: Any, held_out: list[str], exported_translator: Path
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported_translator, trust_remote_code=True)
    model, sources = load_exported(exported_translator), translator.tokenizer.encode(held_out)
    batch = tokenizer(held_out, padding=True, return_tensors="pt")

    def generate(**options: Any) -> list[str]:
        texts: list[str] = tokenizer.batch_decode(model.generate(**batch, **options), skip_special_tokens=True)
        return texts

    def search(**settings: Any) -> list[str]:
        results = TorchBackend(translator.model).translate(SearchRequest(sources, SearchSettings(**settings)))
        return translator.tokenizer.decode([best.tokens for best, *_ in results])  # type: ignore[no-any-return]

    greedy = search(beam=1)
    assert len({*greedy}) > 20
    assert generate() == search(beam=4, early_stopping=True)
    assert generate(early_stopping="never") == search(beam=4)
    assert generate(num_beams=1) == greedy
    assert generate(num_beams=1, use_cache=False) == greedy


def test_rows_of_a_batch_end_at_the_limit_of_their_own_source(tmp_path: Path) -> None:
    """An untrained model never ends a text: each is cut off at twice its source's length and 20 tokens."""
    tokenizer = Tokenizer.train(TEXTS, TokenizerConfig(kind="characters", vocabulary=40))
    settings = {**SMALL, "vocabulary": len(tokenizer), "max_length": 64, "positions": "rotary"}
    translator = wrap_model(perturbed(heedful.build("laptop-translator", **settings)), (tokenizer,))
    heedful.export(translator, "huggingface", tmp_path / "there")
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "there", trust_remote_code=True)
    batch, model = reader(TEXTS, padding=True, return_tensors="pt"), load_exported(tmp_path / "there")
    for beam in (1, 3):
        output = model.generate(**batch, num_beams=beam, early_stopping=beam > 1)
        texts = translator.translate(TEXTS, beam=beam, engine="torch")
        assert reader.batch_decode(output, skip_special_tokens=True) == texts


def test_writer_continues_padded_prompts_alike(held_out: list[str], tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(held_out, TokenizerConfig(kind="characters", vocabulary=90))
    settings = {**SMALL, "vocabulary": len(tokenizer), "max_length": 64, "positions": "alibi"}
    ours = wrap_model(perturbed(heedful.build("laptop-writer", **settings)), (tokenizer,))
    heedful.export(ours, "huggingface", tmp_path / "there")
    prompts = [text[: 3 + index] for index, text in enumerate(held_out[:6])]
    generate = transformers.pipeline("text-generation", str(tmp_path / "there"), trust_remote_code=True)
    expected = ours.generate(prompts, max_length=12, temperature=0.0)
    single = [generate(prompt, max_new_tokens=12)[0]["generated_text"] for prompt in prompts]
    batched = [outputs[0]["generated_text"] for outputs in generate(prompts, max_new_tokens=12, batch_size=6)]
    beam = [
        outputs[0]["generated_text"]
        for outputs in generate(prompts, max_new_tokens=12, num_beams=3, early_stopping="never")
    ]
    assert single == batched == expected
    assert beam == ours.generate(prompts, max_length=12, beam=3)


def reader_model(tmp_path: Path, texts: list[str], kind: Any, **settings: Any) -> TrainedModel:
    tokenizer = Tokenizer.train(texts, TokenizerConfig(kind=kind, vocabulary=300))
    shape = {**SMALL, "vocabulary": len(tokenizer), "max_length": 64, "positions": "rotary"}
    ours: TrainedModel = wrap_model(perturbed(heedful.build("laptop-reader", **{**shape, **settings})), (tokenizer,))
    heedful.export(ours, "huggingface", tmp_path / "there")
    return ours


@pytest.mark.parametrize("pooling", ["first", "mean", "last"])
@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_classifier_pipeline_gives_the_same_classes(
    family: str, pooling: str, held_out: list[str], tmp_path: Path
) -> None:
    settings = {"family": family, "tasks": ("sequence_class",), "classes": 3, "pooling": pooling}
    ours: Any = reader_model(tmp_path / "uncalibrated", held_out, "byte_bpe", **settings)
    ours.settings = ours.settings.with_changes(temperature=2.5)
    weights = ours.model.heads["sequence_class"].classes.weight.clone()
    heedful.export(ours, "huggingface", tmp_path / "there")
    assert ours.model.heads["sequence_class"].classes.weight.equal(weights), "a copy is calibrated"
    classify = transformers.pipeline("text-classification", str(tmp_path / "there"), trust_remote_code=True)
    theirs = classify(held_out[:8], batch_size=8, truncation=True)
    for label, result in zip(theirs, ours.classify(held_out[:8]), strict=True):
        assert label["label"] == result.label
        assert label["score"] == pytest.approx(result.labels[0].probability, abs=1e-5)


@pytest.mark.parametrize("kind", ["byte_bpe", "unigram", "characters"])
def test_fill_mask_pipeline_gives_the_same_words(kind: str, held_out: list[str], tmp_path: Path) -> None:
    ours: Any = reader_model(tmp_path, held_out, kind)
    fill = transformers.pipeline("fill-mask", str(tmp_path / "there"), trust_remote_code=True)
    back: Any = heedful.load(tmp_path / "there")
    for text in ("12 [MASK] 1999", "[MASK] May", "1 May[MASK]", "le [MASK], 2001 "):
        theirs = fill(text.replace("[MASK]", fill.tokenizer.mask_token), top_k=3)
        guesses = ours.fill(text, top=3).guesses[0]
        pieces = ours.tokenizer.pieces([prediction["token"] for prediction in theirs])
        assert [piece.strip() for piece in pieces] == [guess.word.strip() for guess in guesses]
        assert [prediction["score"] for prediction in theirs] == pytest.approx(
            [guess.probability for guess in guesses], abs=1e-5
        )
        assert [guess.word for guess in back.fill(text, top=3).guesses[0]] == [guess.word for guess in guesses]


def test_question_answerer_gives_the_same_logits(held_out: list[str], tmp_path: Path) -> None:
    ours = reader_model(tmp_path, held_out, "byte_bpe", tasks=("answer_span",), segments=2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "there", trust_remote_code=True)
    question, passage = "When?", "On 12 May 1999"
    batch = tokenizer(question, passage, return_tensors="pt")
    ids = [ours.tokenizer.encode([text])[0] for text in (question, passage)]
    assert batch.input_ids[0].tolist() == ours.template.wrap(*ids)
    starts, length = torch.tensor([len(ids[0]) + 2]), torch.tensor([batch.input_ids.shape[1]])
    with torch.no_grad():
        output = load_exported(tmp_path / "there")(**batch)
        expected = span_logits(ours.model, batch.input_ids, length, starts)
    for theirs, logits in zip((output.start_logits, output.end_logits), expected, strict=True):
        in_passage = logits > -1e3
        torch.testing.assert_close(theirs[in_passage], logits[in_passage], rtol=1e-4, atol=1e-4)


def test_fine_tuning_with_transformers_lowers_the_loss(tmp_path: Path) -> None:
    heedful.export(
        wrap_model(heedful.build("laptop-translator", **SMALL, positions="rotary")), "huggingface", tmp_path / "there"
    )
    model = load_exported(tmp_path / "there").train()
    source, labels = torch.randint(6, 30, (4, 9)), torch.randint(6, 30, (4, 7))
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=1e-2), []
    for _ in range(8):
        loss = model(input_ids=source, labels=labels).loss
        losses.append(float(loss.detach()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0] - 0.5


def test_reimported_folder_translates_alike(
    translator: Any, held_out: list[str], exported_translator: Path, tmp_path: Path
) -> None:
    back: Any = import_folder(exported_translator, tmp_path / "back")
    assert back.tokenizers == translator.tokenizers
    assert back.translate(held_out[:9], engine="torch") == translator.translate(held_out[:9], engine="torch")


def test_reimport_with_damaged_files_is_a_one_line_error(exported_translator: Path) -> None:
    file = exported_translator / "config.json"
    content = json.loads(file.read_text())
    for changes, message in (({"layers": 3}, "do not fit: "), ({"positions": "spiral"}, "positions")):
        file.write_text(json.dumps({**content, **changes}))
        with pytest.raises(heedful.CheckpointError, match=message) as caught:
            heedful.load(exported_translator)
        assert "\n" not in str(caught.value)


def test_transformers_saves_and_loads_it_again(exported_translator: Path, tmp_path: Path) -> None:
    first = load_exported(exported_translator)
    first.save_pretrained(tmp_path / "again")
    again = load_exported(tmp_path / "again")
    assert all(torch.equal(weight, again.state_dict()[name]) for name, weight in first.state_dict().items())


def test_modeling_files_import_torch_and_transformers_only() -> None:
    roots = {
        (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) else node.names[0].name
        for file in CODE.glob("*_heedful*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not node.level)
    }
    assert roots == {"__future__", "math", "typing", "torch", "transformers"}
