"""Arguments of the Python API: a wrong one is a UsageError that names it as Python writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import heedful
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

CALLS = {
    "heedful.train()": 'heedful.train("translate", "train.en", "train.de")',
    "heedful.train('translate')": 'heedful.train("translate", "train.en", "train.de")',
    "heedful.train('generate', 'a', settings={'width': 64})": "did you mean 'model.width'?",
    "heedful.train('generate', 'a', settings=5)": 'as in settings={"model.width": 256}; got 5',
    "heedful.train('generate', 'a', settings={3: 4})": "unknown setting '3'",
    "heedful.train('generate', 'a', settings=[None])": "a setting is written section.key=value, got None",
    "heedful.train('generate', None)": "files takes a path, got None",
    "heedful.train('generate', 'a', valid=5)": "valid takes a path, got 5",
    "heedful.train('generate', 'a', out=5)": "out takes a path, got 5",
    "heedful.train('generate', 'a', steps=0)": "steps must be an integer of at least 1, got 0",
    "heedful.train('generate', 'a', seed='x')": "seed must be an integer of at least 0, got 'x'",
    "heedful.train('generate', 'a', time=[])": "invalid duration",
    "heedful.train(resume='a', out='b')": 'resume="a" and out="b" name two folders; give only resume="a"',
    "heedful.evaluate(None, 'a')": "model is a folder or a loaded model, got None",
    "heedful.evaluate('writer', 5)": "files takes a path, got 5",
    "heedful.evaluate('writer', ['a'])": "files takes a path, got ['a']: give each path as an argument of its own",
    "heedful.evaluate('classifier', 'a.tsv', beam=2)": "beam is for translators, not for classify",
    "heedful.evaluate('writer', 'a.txt', length_penalty=0.5)": "length_penalty is for translators, not for generate",
    "heedful.evaluate('filler', 'a.txt', bleu_tokenizer='zh')": "bleu_tokenizer is for translators, not for fill",
    "heedful.train('translate', ['a', 'b'])": "got ['a', 'b']: give each path as an argument of its own",
    "heedful.load(None)": "load takes the path of a model folder, got None",
    "heedful.load('writer', device='gpu')": "unknown device 'gpu'",
    "heedful.load('writer', device='cpu:')": "unknown device 'cpu:'",
    "heedful.load('writer').words.similar(5)": "a word must be a string, got 5",
    "heedful.load('writer').words.similar('a', top=0)": "top must be positive, got 0",
    "heedful.load('translator').translate('a', beam=0)": "beam: input should be greater than 0, got 0",
    "heedful.load('translator').translate('a', n_best=2)": "iter_translate gives the others of n_best 2",
    "heedful.load('writer').generate('a', n_best=2)": "iter_generate gives the others of n_best 2",
    "heedful.load('translator').translate('a', interventions=heedful.Ablate('encoder.0'))": "must be a list",
    "heedful.load('translator').translate('a', interventions=['encoder.0'])": "such as Ablate('encoder.0')",
    "heedful.load('writer').look('a', interventions=['decoder.0'])": "such as Ablate('decoder.0')",
    "heedful.load('translator').translate('a', engine='x')": "engine: ",
    "heedful.Translator.load('writer')": "use heedful.Generator.load",
}
NOT_TEXTS: list[Any] = ["None", "5", "b'a'", "{'a': 1}", "[None]", "['a', 5]", r"'\ud800'", r"['a', 'a\udc00']"]
METHODS = ["translator.translate", "translator.embed", "writer.generate", "classifier.classify", "filler.fill"]
SCRIPT = """
import json, sys, heedful
models = {name: heedful.load(name, device="cpu") for name in json.loads(sys.argv[1])}
for call in json.loads(sys.argv[2]):
    try:
        eval(call, {"heedful": heedful, **models})
    except heedful.UsageError as error:
        print(json.dumps(str(error)))
    except Exception as error:
        print(json.dumps(f"{type(error).__name__}: {error}"))
    else:
        print(json.dumps(""))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untrained models."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = Tokenizer.train(["a b c d"] * 9, TokenizerConfig(kind="words", vocabulary=20))
    reader: dict[str, dict[str, Any]] = {
        "classifier": {"tasks": ("sequence_class",), "classes": 2},
        "answerer": {"tasks": ("answer_span",), "segments": 2},
        "filler": {"tasks": ("masked_token",)},
    }
    for name in ("translator", "writer", *reader):
        preset, settings = "laptop-reader" if name in reader else f"laptop-{name}", reader.get(name, {})
        model = heedful.build(preset, vocabulary=len(tokenizer), width=8, heads=2, layers=1, **settings)
        tokenizer.save(heedful.save(model, folder / name) / "tokenizer.json")
    return folder


def messages(fork_server: Any, folder: Path, *calls: str) -> list[str]:
    """The message of each call's UsageError, without the test suite's own checks of types."""
    names = [path.name for path in folder.iterdir() if path.is_dir()]
    done = fork_server.run_script(SCRIPT, json.dumps(names), json.dumps(calls), folder=folder)
    assert done.code == 0, done.output
    return [json.loads(line) for line in done.output.splitlines()]


def test_a_wrong_argument_is_named_in_python(fork_server: Any, folder: Path) -> None:
    for (call, expected), message in zip(CALLS.items(), messages(fork_server, folder, *CALLS), strict=True):
        assert expected in message, call
        assert "--" not in message, call
        assert "Error: " not in message, call


def test_only_texts_are_taken(fork_server: Any, folder: Path) -> None:
    calls = [f"{method}({value})" for method in METHODS for value in NOT_TEXTS]
    calls += [f"answerer.answer({value}, 'a')" for value in NOT_TEXTS]
    calls += [f"answerer.answer('a', {value})" for value in NOT_TEXTS]
    for call, message in zip(calls, messages(fork_server, folder, *calls), strict=True):
        refusals = "expected a text or a list of texts, got", "every text must be "
        assert message.startswith(refusals), f"{call}: {message}"
