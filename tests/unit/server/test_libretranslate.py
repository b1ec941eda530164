"""LibreTranslate's interface, by its own client and by what its page and apps send."""

from __future__ import annotations

import base64
import time
from typing import Any
from urllib.error import HTTPError

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI

from heedful.server.language_pairs import LanguagePair
from heedful.server.server_settings import ServerSettings
from served import running

PAGE = """<!DOCTYPE html><html><body class="x"><h1>2 May 1980</h1>
<p>On <b>3 June</b> or <a href="/x?a=1&amp;b=2">4 July</a>.</p><script>var x = "<p>2 May</p>";</script>
<p translate="no">5 May</p><pre>6 June</pre><p>  </p></body></html>"""


@pytest.fixture
def client(server: Any) -> LibreTranslateAPI:
    return LibreTranslateAPI(server.url)


def test_the_official_client_translates_detects_and_lists(client: Any, server: Any) -> None:
    assert client.translate("2 May 1980", "en", "de") == server.models["dates"].translate("2 May 1980")
    assert client.languages() == [
        {"code": "de", "name": "German", "targets": []},
        {"code": "en", "name": "English", "targets": ["de"]},
    ]
    first, second = client.detect("Good morning, this is the house of my friend")
    assert first["language"] == "en"
    assert first["confidence"] > 95 > 5 > second["confidence"]
    assert client.detect("1980-05-02") == [{"language": code, "confidence": 0.0} for code in ("en", "de")]


def test_every_kind_of_form_is_read_alike(server: Any) -> None:
    fields = {"q": "on the second of May – ü", "source": "en", "target": "de", "alternatives": "2"}
    answers = [
        httpx.post(server.url + path, trust_env=False, timeout=30, **body).json()
        for path in ("/translate", "/detect")
        for body in (
            {"json": fields},
            {"data": fields},
            {"files": {name: (None, each) for name, each in fields.items()}},
        )
    ]
    assert answers[0] == answers[1] == answers[2]
    assert len(answers[0]["alternatives"]) == 2
    assert answers[3] == answers[4] == answers[5]


def test_a_text_without_letters_is_of_the_first_language(server: Any) -> None:
    answer = server.post("/translate", {"q": "1980", "source": "auto", "target": "de"}).json()
    assert answer["detectedLanguage"] == {"language": "en", "confidence": 0.0}


def test_translators_that_state_no_language_answer_any_pair_and_detect_many(models: Any) -> None:
    with running({"dates": models["dates"]}) as server:
        for code, text in {
            "fr": "Deux hommes jouent dans la rue",
            "ja": "これは犬です",
            "ru": "мужчина и женщина уже в доме",
        }.items():
            assert server.post("/detect", {"q": text}).json()[0]["language"] == code
            answer = server.post("/translate", {"q": text, "source": "auto", "target": code}).json()
            assert answer["detectedLanguage"]["language"] == code
            assert answer["translatedText"] == models["dates"].translate(text)
        assert server.get("/languages").json() == []


def test_lists_alternatives_and_detection(server: Any) -> None:
    texts = ["2 May 1980", "3 June 1990"]
    body = {"q": texts, "source": "en", "target": "de", "alternatives": 2}
    answer = server.post("/translate", body).json()
    assert answer["translatedText"] == server.models["dates"].translate(texts)
    assert [len(each) for each in answer["alternatives"]] == [2, 2]
    answer = server.post("/translate", {"q": "on the second of May", "source": "auto", "target": "de"}).json()
    assert answer["detectedLanguage"]["language"] == "en"
    same = server.post("/translate", {"q": "der zweite Mai ist nicht heute", "source": "auto", "target": "de"}).json()
    assert same["translatedText"] == "der zweite Mai ist nicht heute"


def test_tags_of_html_survive(server: Any) -> None:
    answer = server.post("/translate", {"q": PAGE, "source": "en", "target": "de", "format": "html"})
    page = answer.json()["translatedText"]
    for part in ('<!DOCTYPE html><html><body class="x"><h1>', "</h1>", '<a href="/x?a=1&amp;b=2">', "</a>", "<b>"):
        assert page.count(part) == 1, part
    assert '<script>var x = "<p>2 May</p>";</script>\n<p translate="no">5 May</p><pre>6 June</pre><p>  </p>' in page
    assert "2 May 1980" not in page
    image = f'<img src="data:image/png;base64,{"A" * 9_000}" title="a > b">'
    page = server.post("/translate", {"q": f"2 {image} May", "source": "en", "target": "de", "format": "html"}).json()
    assert page["translatedText"].count(image) == 1


def test_a_file_is_translated_line_by_line_and_nothing_is_stored(server: Any) -> None:
    lines = ["2 May 1980", "", "3 June 1990 – ü"]
    fields = {"source": "en", "target": "de"}
    files = {"file": ("../../notes.txt", "\n".join(lines).encode(), "text/plain")}
    answer = httpx.post(server.url + "/translate_file", data=fields, files=files, timeout=30, trust_env=False)
    head, _, content = answer.json()["translatedFileUrl"].partition(",")
    assert head == "data:text/plain;charset=utf-8;base64"
    assert base64.b64decode(content).decode() == "\n".join(server.models["dates"].translate(lines))
    refused = {"file": ("notes.exe", b"x", "text/plain")}
    answer = httpx.post(server.url + "/translate_file", data=fields, files=refused, timeout=30, trust_env=False)
    assert (answer.status_code, list(answer.json())) == (400, ["error"])


def test_a_long_file_has_one_deadline(models: Any) -> None:
    """However many parts it is translated in."""
    with running({"dates": models["dates"]}, ServerSettings(deadline=0.5)) as server:
        files = {"file": ("notes.txt", b"2 May 1980\n" * 50_000, "text/plain")}
        fields, start = {"source": "en", "target": "de"}, time.monotonic()
        answer = httpx.post(server.url + "/translate_file", data=fields, files=files, timeout=60, trust_env=False)
        assert (answer.status_code, answer.json()) == (503, {"error": "the request was not complete by its deadline"})
        assert time.monotonic() - start < 10


def test_the_key_may_be_in_any_form(models: Any) -> None:
    """As its client sends it: with GET in the body, with a file beside it."""
    key = "0123456789abcdef"
    with running(
        {"dates": models["dates"]}, ServerSettings(token=key), languages={"dates": LanguagePair("en", "de")}
    ) as server:
        assert len(LibreTranslateAPI(server.url, api_key=key).languages()) == 2
        with pytest.raises(HTTPError, match="401"):
            LibreTranslateAPI(server.url, api_key=key + "x").languages()
        for sent, status in ((key, 200), (key + "x", 401)):
            fields = {"source": "en", "target": "de", "api_key": sent}
            files = {"file": ("notes.txt", b"2 May", "text/plain")}
            answer = httpx.post(server.url + "/translate_file", data=fields, files=files, timeout=30, trust_env=False)
            assert answer.status_code == status


def test_frontend_settings_name_the_languages(server: Any) -> None:
    settings = server.get("/frontend/settings").json()
    assert settings["language"]["target"] == {"code": "de", "name": "German"}
    assert settings["keyRequired"] is False


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"q": "x", "source": "en", "target": "fr"}, "served: en-de"),
        ({"q": "x", "source": "en"}, "target: field required"),
        ({"q": 3, "source": "en", "target": "de"}, "q.str: input should be a valid string"),
        ({"q": "x", "source": "en", "target": "de", "format": "pdf"}, "format: input should be 'text' or 'html'"),
        ({"q": "x", "source": "en", "target": "de", "alternatives": 99}, "at most 15"),
        ({"q": "x", "source": "en", "target": "de", "alternatives": [1]}, "alternatives: input should be a valid int"),
        ({"q": "x", "source": "en", "target": "de", "alternatives": {}}, "alternatives: input should be a valid int"),
        (["x"], "the body must be an object"),
    ],
)
def test_a_mistake_is_one_short_message(server: Any, body: Any, message: str) -> None:
    answer = server.post("/translate", body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]
