"""Our own interface answers as the library does, for every task, whatever else is being served."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import numpy as np
import pytest

import heedful
from heedful.server.error_responses import without_content

QUESTION = {"question": "who runs", "passage": "a boy in a blue shirt runs"}
ABLATION = [heedful.Ablate("encoder.0")]


def test_every_task_answers_as_the_library_does(server: Any, sources: list[str]) -> None:
    models = server.models
    cases: list[tuple[str, dict[str, Any], list[Any]]] = [
        ("translate", {"text": sources[:5], "beam": 3, "max_length": 12},
         [*models["dates"].iter_translate(sources[:5], beam=3, max_length=12)]),
        ("generate", {"prompt": ["2 May", "x"], "seed": 3, "max_length": 12},
         [*models["writer"].iter_generate(["2 May", "x"], seed=3, max_length=12)]),
        ("classify", {"text": ["two men", "a dog"]}, models["classify"].classify(["two men", "a dog"])),
        ("fill", {"text": "a [MASK] runs", "top": 3}, [models["fill"].fill("a [MASK] runs", top=3)]),
        ("answer", {**QUESTION, "top": 2}, [models["answer"].answer(*QUESTION.values(), top=2)]),
    ]  # fmt: skip
    for task, body, expected in cases:
        answer = server.post(f"/api/v1/{task}", body)
        assert answer.status_code == 200, answer.text
        for result, wanted in zip(answer.json()["results"], expected, strict=True):
            assert_close(result, json.loads(json.dumps(wanted.to_json())))


def test_embeddings_and_looks_are_those_of_the_library(server: Any) -> None:
    vectors = server.post("/api/v1/embed", {"model": "dates", "text": ["2 May", "3 June"]}).json()["results"]
    expected = server.models["dates"].embed(["2 May", "3 June"])
    assert np.allclose([each["vector"] for each in vectors], expected, atol=1e-5)
    seen = server.post("/api/v1/look", {"model": "dates", "text": "2 May 1980", "lens": True}).json()
    look = server.models["dates"].look("2 May 1980", lens=True)
    first = seen["attention"][0]
    weights = np.frombuffer(base64.b64decode(first["data"]), "<f4").reshape(first["shape"])
    assert np.allclose(weights, look.attention[first["name"]].weights, atol=1e-6)
    assert [each["text"] for each in seen["outputs"]] == [each.text for each in look.outputs]
    assert seen["lens"]


def test_an_explanation_is_that_of_the_library(server: Any) -> None:
    body = {"model": "classify", "text": "two men ride", "methods": ["occlusion"], "faithfulness": False}
    explained = server.post("/api/v1/explain", body).json()
    expected = server.models["classify"].explain("two men ride", methods=["occlusion"], faithfulness=False)
    assert_close(explained["methods"], expected.to_json()["methods"])
    assert explained["output_text"] == expected.output_text


def test_an_intervention_changes_its_own_request_only(server: Any, sources: list[str]) -> None:
    plain = server.models["dates"].translate(sources[:3], max_length=20)
    changed = server.models["dates"].translate(sources[:3], max_length=20, interventions=ABLATION)
    assert plain != changed
    body: dict[str, Any] = {"model": "dates", "text": sources[:3], "max_length": 20}
    changes = {"interventions": [{"kind": "ablate", "part": "encoder.0"}]}
    for _ in range(2):
        answers = [server.post("/api/v1/translate", {**body, **extra}) for extra in ({}, changes)]
        assert [[each["text"] for each in answer.json()["results"]] for answer in answers] == [plain, changed]


def test_token_probabilities_alternatives_and_prefixes_are_served(server: Any) -> None:
    body = {"text": "2 May 1980", "n_best": 3, "token_probabilities": True, "prefix": "19"}
    (result,) = server.post("/api/v1/translate", body).json()["results"]
    assert len(result["alternatives"]) == 2
    for each in (result, *result["alternatives"]):
        assert each["text"].startswith("19")
        assert "".join(token["text"] for token in each["tokens"]) == each["text"]
        assert all(0 <= token["probability"] <= 1 for token in each["tokens"])


def test_a_stream_gives_the_text_that_generate_gives(server: Any) -> None:
    body = {"prompt": "2 May", "seed": 5, "min_length": 8, "max_length": 20}
    (whole,) = server.post("/api/v1/generate", body).json()["results"]
    pieces = []
    with httpx.stream("POST", server.url + "/api/v1/generate", json={**body, "stream": True}, timeout=30) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-2:] == ["event: done", "data: {}"]
    pieces = [json.loads(line.removeprefix("data: "))["text"] for line in lines[:-2]]
    assert len(pieces) > 1
    assert "".join(pieces) == whole["text"]


def test_models_and_their_parts_are_listed(server: Any) -> None:
    answer = server.get("/api/v1/models").json()
    assert {each["name"]: each["task"] for each in answer["models"]} == {
        "dates": "translate", "writer": "generate", "classify": "classify", "fill": "fill", "answer": "answer",
    }  # fmt: skip
    assert next(each for each in answer["models"] if each["name"] == "dates")["languages"] == ["en", "de"]
    parts = server.get("/api/v1/models/dates/parts").json()
    heads = {each["name"]: each["heads"] for each in parts["parts"]}
    assert heads["decoder.0.cross"] == 2
    assert parts["config"]["width"] == 16
    assert "discriminator" in server.get("/api/v1/interventions").json()["items"]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("translate", {"text": "x", "model": "other"}, 404, "no such model is served"),
        ("translate", {"text": "x", "model": "writer"}, 422, "writer is a language model, which cannot translate"),
        ("embed", {"text": "x"}, 422, "name a model: answer, classify"),
        ("translate", {"text": "x", "bem": 3}, 422, "bem: unknown setting"),
        ("translate", {"text": "x", "beam": 4, "temperature": 1}, 422, "give one or the other"),
        ("translate", {"text": "x", "beam": 17}, 422, "beam: at most 16 is served"),
        ("translate", {"text": ["x"] * 257}, 422, "257 texts; at most 256"),
        ("translate", {"text": "x" * 20_001}, 422, "a text of 20,001 characters"),
        ("generate", {"prompt": "x", "max_length": 1_025}, 422, "max_length: at most 1,024 is served"),
        ("generate", {"prompt": ["x", "y"], "stream": True}, 422, "a stream continues one prompt"),
        ("look", {"model": "dates", "text": "x" * 2_001}, 422, "at most 2,000"),
        ("translate", {"text": "x", "interventions": [{"kind": "ablate", "part": "encoder.9"}]}, 422, "did you mean"),
        ("translate", {"text": "x", "interventions": [{"kind": "replace", "part": "encoder.0"}]}, 422, "replace"),
        ("translate", {"text": "x", "glossary": "/etc/passwd"}, 422, "glossary"),
        ("fill", {"text": "no mask here"}, 422, "there is no [MASK] to fill in '…'"),
        ("answer", {"question": "who runs " * 300, "passage": "one"}, 422, "leaves no room for its passage"),
        ("answer", {"question": ["who", "what"], "passage": ["one"]}, 422, "2 questions, but 1 passages"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_served_says_why(
    server: Any, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    answer = server.post(f"/api/v1/{path}", body)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]
    assert len(answer.content) < 600


PATCH = {"kind": "patch", "part": "encoder.0"}
OVERFLOW = {"kind": "scale", "part": "encoder.0.attention", "factor": 1.0e300}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("classify", {"text": "a dog", "interventions": [OVERFLOW]}, "NaN or infinity"),
        ("fill", {"text": "a [MASK] runs", "interventions": [OVERFLOW]}, "NaN or infinity"),
        ("answer", {"question": "who runs", "passage": "a dog runs", "interventions": [OVERFLOW]}, "NaN or infinity"),
        ("embed", {"model": "fill", "text": "a dog", "interventions": [OVERFLOW]}, "NaN or infinity"),
        ("translate", {"text": "2 May", "interventions": [OVERFLOW]}, "no token has a probability"),
        ("embed", {"model": "fill", "text": "a", "interventions": [PATCH | {"text": "x" * 2_001}]}, "2,000 are"),
        ("embed", {"model": "fill", "text": "a", "interventions": [PATCH | {"text": "a dog runs"}]}, "tokens here"),
    ],
)
def test_an_intervention_that_breaks_the_model_is_refused(
    server: Any, path: str, body: dict[str, Any], message: str
) -> None:
    answer = server.post(f"/api/v1/{path}", body)
    assert (answer.status_code, message in answer.text) == (422, True), answer.text
    assert "heedful_active_texts 0.0" in server.get("/metrics").text


WORD = "Zebrastreifen77"
REFUSED = [
    ("classify", {"model": "classify", "text": [["x" * 20, WORD]]}),
    ("classify", {"model": "classify", "text": [["x" * 38, WORD]]}),
    ("classify", {"model": "classify", "text": [["\\'\n" * 5 + WORD, f'"{WORD}']]}),
    ("fill", {"text": WORD}),
    ("fill", {"text": f"{WORD} " * 9}),
    ("fill", {"text": f"'\n{WORD}\u0001\u2028 x"}),
    ("translate", {"text": "2 May", "prefix": f"a{WORD}", "stop": [WORD]}),
    ("translate", {"text": "2 May", "stop": [WORD], "forbidden": [WORD]}),
    ("translate", {"text": "2 May", "glossary": {WORD: "x" * 201}}),
    ("translate", {"text": "2 May", "keep": WORD}),
    ("look", {"model": "writer", "text": f"{WORD} " * 100}),
    ("look", {"model": "answer", "text": WORD}),
    ("explain", {"model": "answer", "text": WORD, "target": WORD}),
    ("look", {"model": "classify", "text": "a dog", "target": WORD}),
    ("embed", {"model": "fill", "text": "a", "interventions": [PATCH | {"text": f"{WORD} {WORD}"}]}),
]


@pytest.mark.parametrize(("path", "body"), REFUSED)
def test_a_message_repeats_no_text_however_it_quotes_it(server: Any, path: str, body: dict[str, Any]) -> None:
    """Refusals of the library quote whole texts, single words, pairs and beginnings."""
    answer = server.post(f"/api/v1/{path}", body)
    assert answer.status_code == 422, answer.text
    assert "ebra" not in answer.text


@pytest.mark.parametrize(
    "text", ["ab", "Zebra", WORD, f"a {WORD}", f"{WORD} " * 9, f"\\'\n{WORD}", f'"{WORD}', "ß" * 50 + WORD]
)
@pytest.mark.parametrize(
    "message", ["got {0!r:.60}", "got {0!r}", "'{0}'", '"{0:.20}" …', "got {1!r:.60}", "both {0!r}, {0!r:.9}"]
)
def test_nothing_of_a_text_is_left_in_a_message(message: str, text: str) -> None:
    shown = without_content(message.format(text, ("x" * 30, text)), {"model": "m", "text": [["x" * 30, text]]})
    assert all(text[start : start + 8] not in shown for start in range(max(1, len(text) - 7)))
    assert "got" in shown or "both" in shown or "…" in shown


def test_the_space_after_a_quoted_beginning_stays() -> None:
    text = "a small dog runs " * 9
    assert without_content(f"{text!r:.16} has 45 tokens", {"text": text}) == "'…' has 45 tokens"


def test_names_stay_in_a_message() -> None:
    body = {"model": "dates", "text": "decoder", "interventions": [{"part": "decoder.9"}], "bem": 1}
    message = "no part is called 'decoder.9'; did you mean 'decoder.1'? bem: unknown setting of dates, a decoder"
    assert without_content(message, body) == message


def assert_close(result: Any, expected: Any) -> None:
    """Equal, up to the rounding of scores; keys that are null or empty may be left out."""
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert_close(result[key], value)
    elif isinstance(expected, list):
        for one, other in zip(result, expected, strict=True):
            assert_close(one, other)
    elif isinstance(expected, float):
        assert result == pytest.approx(expected, abs=2e-4)
    else:
        assert result == expected
