"""What `heedful.load` returns: one class per task, with real signatures, and errors instead of tracebacks."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import pytest

import heedful
from heedful import Classifier, Embedder, Generator, MaskFiller, QuestionAnswerer, TrainedModel, Translator, UsageError
from heedful.generation.decoding_config import DecodingConfig
from heedful.inference import decoding_arguments
from heedful.inference.classifier import ClassifierSettings
from heedful.loading import wrap_model
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

TEXTS = ["a cat sat on the mat", "the dog"]
PRESETS: dict[type[TrainedModel], tuple[str, dict[str, Any]]] = {
    Translator: ("laptop-translator", {}),
    Generator: ("laptop-writer", {}),
    Classifier: ("laptop-reader", {"tasks": ("sequence_class",), "classes": 2}),
    QuestionAnswerer: ("laptop-reader", {"tasks": ("answer_span",), "segments": 2}),
    MaskFiller: ("laptop-reader", {"tasks": ("masked_token",)}),
    Embedder: ("laptop-reader", {"tasks": ()}),
}
every_type = pytest.mark.parametrize("model_type", PRESETS)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS * 3, TokenizerConfig(kind="words", vocabulary=100))


def make(model_type: type[TrainedModel], tokenizer: Tokenizer) -> Any:
    name, settings = PRESETS[model_type]
    size = {"vocabulary": len(tokenizer), "width": 16, "heads": 2, "layers": 1}
    return wrap_model(heedful.build(name, **size, **settings).eval(), (tokenizer,))


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without the tests' type checks, as users call it."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@every_type
def test_load_gives_the_class_of_the_task(model_type: type[TrainedModel], tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = make(model_type, tokenizer).save(tmp_path / "model")
    loaded = heedful.load(folder, device="cpu")
    assert type(loaded) is model_type is type(model_type.load(folder))
    assert loaded.tokenizers == (tokenizer,)
    assert loaded.embed(TEXTS).shape == (2, 16), "every model embeds texts"
    assert "cat" in loaded.words


@every_type
def test_loading_as_another_type_names_the_right_one(
    model_type: type[TrainedModel], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder = make(model_type, tokenizer).save(tmp_path / "model")
    other = Classifier if model_type is not Classifier else Translator
    with pytest.raises(
        UsageError, match=rf"model is {model_type.kind}, not {other.kind}; use heedful.{model_type.__name__}"
    ):
        other.load(folder)


def test_settings_are_stored_with_the_model(tokenizer: Tokenizer, tmp_path: Path) -> None:
    settings = ClassifierSettings(names=("bad", "good"), max_length=9, temperature=1.5)
    classifier = Classifier(make(Classifier, tokenizer).model, (tokenizer,), settings=settings)
    loaded = Classifier.load(classifier.save(tmp_path / "model"))
    assert loaded.settings == settings
    assert loaded.classify(TEXTS[0]).to_json() == classifier.classify(TEXTS[0]).to_json()


def test_repr_describes_the_model(tokenizer: Tokenizer) -> None:
    translator = make(Translator, tokenizer)
    translator.folder = Path("translate-1")
    described = repr(translator)
    assert described.startswith("Translator('translate-1', ")
    assert described.endswith(f"K parameters, encoder_decoder 1+1 layers, width 16, vocabulary {len(tokenizer)}, cpu)")


def test_a_text_gives_one_result_and_a_list_gives_a_list(tokenizer: Tokenizer) -> None:
    masked = "a [MASK] sat"
    calls: list[tuple[Any, str]] = [
        (make(Translator, tokenizer).translate, TEXTS[0]),
        (make(Generator, tokenizer).generate, TEXTS[0]),
        (make(Classifier, tokenizer).classify, TEXTS[0]),
        (make(MaskFiller, tokenizer).fill, masked),
    ]
    for call, text in calls:
        single, listed = call(text), call([text, text])
        assert not isinstance(single, list)
        assert isinstance(listed, list)
        assert len(listed) == 2
        assert call([]) == []


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("text", [None, 3, ["a", None], [3]])
def test_input_that_is_not_text_is_a_usage_error(text: Any, tokenizer: Tokenizer) -> None:
    answerer = make(QuestionAnswerer, tokenizer)
    calls: list[Any] = [
        make(Translator, tokenizer).translate,
        make(Generator, tokenizer).generate,
        make(Classifier, tokenizer).classify,
        make(MaskFiller, tokenizer).fill,
        make(Embedder, tokenizer).embed,
        lambda text: answerer.answer(text, TEXTS[0]),
        lambda text: answerer.answer(TEXTS[0], text),
    ]
    for call in calls:
        with pytest.raises(UsageError, match=r"expected a text or a list of texts, got|every text must be a string"):
            call(text)


def test_a_text_where_an_iterable_belongs_is_a_usage_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(UsageError, match="expected an iterable of texts, got 'the dog'"):
        make(Translator, tokenizer).iter_translate("the dog")


def test_signatures_and_typed_dicts_name_the_decoding_options() -> None:
    only_iter = {"alignments", "word_probabilities"}
    options = {*DecodingConfig.model_fields}
    assert {*decoding_arguments.IterTranslateOptions.__annotations__} == options
    translate = {*inspect.signature(Translator.translate).parameters} - {"self", "text", "progress"}
    assert translate == options - only_iter
    generate = {*inspect.signature(Generator.generate).parameters} - {"self", "prompt", "progress"}
    assert generate == {*decoding_arguments.GenerateOptions.__annotations__} <= options
    for method in (Translator.translate, Generator.generate):
        for name, parameter in inspect.signature(method).parameters.items():
            if name in options and parameter.default is not None:
                default = DecodingConfig.model_fields[name].default
                assert parameter.default == default, name


def test_cuda_without_cuda_is_a_usage_error(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    folder = make(Embedder, tokenizer).save(tmp_path / "model")
    with pytest.raises(UsageError, match='device="cuda": there is no cuda device here; use device="cpu"'):
        heedful.load(folder, device="cuda")
    with pytest.raises(UsageError, match="unknown device 'gpu'"):
        heedful.load(folder, device="gpu")


@every_type
def test_a_model_without_a_tokenizer_is_a_usage_error(model_type: type[TrainedModel], tokenizer: Tokenizer) -> None:
    trained = wrap_model(make(model_type, tokenizer).model)
    calls: dict[type[TrainedModel], Any] = {
        Translator: lambda: trained.translate("a"),
        Generator: lambda: list(trained.stream("a")),
        Classifier: lambda: trained.classify("a"),
        QuestionAnswerer: lambda: trained.answer("a", "b"),
        MaskFiller: lambda: trained.fill("[MASK]"),
        Embedder: lambda: trained.embed("a"),
    }
    with pytest.raises(UsageError, match=r"this model has no tokenizer\.json"):
        calls[model_type]()
