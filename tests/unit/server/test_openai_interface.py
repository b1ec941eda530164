"""OpenAI's interface, by its official client."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

PROMPT = "May 1980"


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as started:
        yield started


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert {model.id for model in client.models.list()} == {"dates", "writer", "classify", "fill", "answer"}
    assert client.models.retrieve("writer").owned_by == "heedful"


def test_completions_are_those_of_generate(client: openai.OpenAI, server: Any) -> None:
    answer = client.completions.create(model="writer", prompt=[PROMPT, "x"], n=2, seed=3, max_tokens=12, echo=True)
    expected = server.models["writer"].iter_generate([PROMPT, "x"], temperature=1.0, seed=3, max_length=12, n_best=2)
    texts = [each.prompt + sample.text for each in expected for sample in (each, *each.alternatives)]
    assert [choice.text for choice in answer.choices] == texts
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_gives_the_same_text(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "writer", "prompt": PROMPT, "seed": 4, "max_tokens": 25}
    whole = client.completions.create(**options).choices[0]
    chunks = [*client.completions.create(**options, stream=True, stream_options={"include_usage": True})]
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.text
    assert chunks[-2].choices[0].finish_reason == whole.finish_reason
    assert chunks[-1].usage == client.completions.create(**options).usage
    several = [*client.completions.create(**options, n=3, stream=True)]
    assert {chunk.choices[0].index for chunk in several} == {0, 1, 2}


def test_a_seed_repeats_and_no_seed_does_not(client: openai.OpenAI) -> None:
    texts = [
        [client.completions.create(model="writer", prompt=PROMPT, max_tokens=30, **seed).choices[0].text for _ in "123"]
        for seed in ({"seed": 5}, {})
    ]
    assert len({*texts[0]}) == 1
    assert len({*texts[1]}) > 1


def test_logprobs_and_echo(client: openai.OpenAI, server: Any) -> None:
    choice = client.completions.create(
        model="writer", prompt="Monday 5", max_tokens=6, temperature=0, logprobs=3, echo=True
    ).choices[0]
    assert choice.logprobs is not None
    scores = choice.logprobs
    assert scores.tokens is not None
    assert scores.token_logprobs is not None
    assert scores.top_logprobs is not None
    assert re.sub("<.*?>", "", "".join(scores.tokens)) == choice.text  # special tokens are no text
    assert scores.token_logprobs[0] is None
    assert all(len(top) == 3 for top in scores.top_logprobs[1:])
    (expected,) = server.models["writer"].iter_generate(["Monday 5"], temperature=0.0, max_length=6)
    generated = scores.token_logprobs[-len(expected.hypotheses[0].tokens) :]
    assert generated == pytest.approx(expected.hypotheses[0].token_log_probabilities[: len(generated)], abs=1e-4)
    for token, score, top in zip(scores.tokens[-3:], generated[-3:], scores.top_logprobs[-3:], strict=True):
        assert max(top.values()) == pytest.approx(score, abs=1e-4)
        assert top[token] == pytest.approx(score, abs=1e-4)
    prompt_only = client.completions.create(model="writer", prompt=PROMPT, max_tokens=0, logprobs=0, echo=True)
    assert prompt_only.choices[0].text == PROMPT


def test_stop_strings_end_a_text_before_them(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="writer", prompt=PROMPT, seed=4, max_tokens=25).choices[0].text
    stop = whole[3]
    cut = client.completions.create(model="writer", prompt=PROMPT, seed=4, max_tokens=25, stop=[stop]).choices[0]
    assert cut.text == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"


def test_embeddings_as_numbers_and_as_base64(client: openai.OpenAI, server: Any) -> None:
    expected = server.models["dates"].embed(["2 May", "x"])
    as_base64 = client.embeddings.create(model="dates", input=["2 May", "x"])  # the client's default
    as_numbers = client.embeddings.create(model="dates", input=["2 May", "x"], encoding_format="float")
    for answer in (as_base64, as_numbers):
        assert np.allclose([each.embedding for each in answer.data], expected, atol=1e-6)


@pytest.mark.parametrize("tokens", [4, 5, 25])
def test_a_stop_string_at_the_limit_of_tokens_is_a_stop(client: openai.OpenAI, tokens: int) -> None:
    """A text that a stop string cut short has ended, even if its last token is the last one allowed."""
    options: dict[str, Any] = {"model": "writer", "prompt": PROMPT, "temperature": 0}
    whole = client.completions.create(**options, max_tokens=4).choices[0]
    assert whole.finish_reason == "length"
    options |= {"stop": whole.text[-1:], "max_tokens": tokens}
    cut = client.completions.create(**options).choices[0]
    chunks = [*client.completions.create(**options, stream=True)]
    assert (cut.text, cut.finish_reason) == (whole.text[: whole.text.index(whole.text[-1])], "stop")
    assert "".join(chunk.choices[0].text for chunk in chunks) == cut.text
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_offsets_of_tokens_point_into_the_text(client: openai.OpenAI) -> None:
    """Also where a character is several tokens, and where the prompt is empty."""
    for prompt, echo in (("ü – 犬 May", True), ("ü – 犬 May", False), ("", False)):
        choice = client.completions.create(
            model="writer", prompt=prompt, max_tokens=12, seed=2, logprobs=1, echo=echo
        ).choices[0]
        text = choice.text if echo else prompt + choice.text
        scores = choice.logprobs
        assert scores is not None
        assert scores.tokens is not None
        assert scores.text_offset is not None
        assert scores.text_offset == sorted(scores.text_offset)
        assert scores.text_offset[0] == (0 if echo else len(prompt))
        assert scores.text_offset[-1] < len(text)
        checked = 0
        for token, offset in zip(scores.tokens, scores.text_offset, strict=True):
            if token.isalnum() and token.isascii():
                assert text[offset : offset + len(token)] == token
                checked += 1
        assert checked or not choice.text.isascii()


def test_no_tokens_are_an_empty_text(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="writer", prompt=PROMPT, max_tokens=0)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("", "length")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"best_of": 4}, "best_of is not supported"),
        ({"suffix": "x"}, "suffix is not supported"),
        ({"presence_penalty": 0.5}, "use `repetition_penalty`"),
        ({"prompt": [1, 2]}, "token ids are not supported"),
        ({"prompt": []}, "prompt: send a text, or a list of texts"),
        ({"max_tokens": 5_000}, "max_tokens: at most 1,024"),
        ({"model": "dates"}, "dates is a translator, which cannot generate"),
        ({"extra_body": {"fancy": 1}}, "fancy: unknown setting"),
    ],
)
def test_what_is_not_supported_is_refused(client: openai.OpenAI, options: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        client.completions.create(**{"model": "writer", "prompt": PROMPT, **options})


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.completions.create(model="other", prompt="x")
    assert (error.value.type, error.value.code, error.value.param) == (
        "invalid_request_error", "model_not_found", "model",
    )  # fmt: skip


def test_embedding_nothing_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="input: send a text"):
        client.embeddings.create(model="dates", input=[])
