"""`heedful serve` as an operator runs it: start, use, replace and damage a model, stop."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
import torch

import heedful
from heedful.loading import wrap_model
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_kinds import TokenizerConfig
from served import start_server

TEXTS = ["a small dog runs in the park", "two men ride a bicycle"]


def save_model(folder: Path, task: str = "laptop-translator", seed: int = 0) -> Any:
    """A small random model, and the recipe that a run leaves beside it."""
    torch.manual_seed(seed)
    tokenizer = Tokenizer.train(TEXTS * 3, TokenizerConfig(kind="words", vocabulary=40))
    model = heedful.build(task, vocabulary=len(tokenizer), width=16, heads=2, layers=1).eval()
    trained = wrap_model(model, (tokenizer,))
    trained.save(folder)
    (folder / "recipe.toml").write_text('[data]\ntrain = ["../train.en", "../train.de.gz"]\n')
    return trained


def test_serve_use_replace_damage_and_stop(fork_server: Any, tmp_path: Path) -> None:
    """One server through its life: the address, the languages, hot reload, a damaged model, a drained shutdown."""
    first = save_model(tmp_path / "translate-1")
    save_model(tmp_path / "writer-1", "laptop-writer")
    process, server = start_server(fork_server, tmp_path, "translate-1", "writer-1", "--log-file", "access.log")
    printed = (tmp_path / "printed").read_text()
    assert "translate-1 (a translator, en-de), writer-1 (a language model)" in printed
    assert printed.count("curl ") == 3

    def translated() -> list[str]:
        answer = server.post("/api/v1/translate", {"text": TEXTS, "max_length": 12})
        assert answer.status_code == 200, answer.text
        return [each["text"] for each in answer.json()["results"]]

    assert translated() == first.translate(TEXTS, max_length=12)
    second = save_model(tmp_path / "new", seed=1)
    assert second.translate(TEXTS, max_length=12) != first.translate(TEXTS, max_length=12)
    second.save(tmp_path / "translate-1")
    process.wait_for_output("translate-1: loaded again", 20)
    assert translated() == second.translate(TEXTS, max_length=12)

    weights = tmp_path / "translate-1" / "model.safetensors"
    with weights.open("r+b") as stream:  # in place, as a failing disk or a copy that is interrupted
        stream.seek(weights.stat().st_size - 400)
        stream.write(os.urandom(300))
    process.wait_for_output("the model loaded before is still served", 20)
    assert translated() == second.translate(TEXTS, max_length=12)
    problem = server.get("/api/v1/models").json()["models"][0]["problem"]
    assert "manifest" in problem
    assert str(tmp_path) not in problem

    shutil.rmtree(tmp_path / "translate-1")
    time.sleep(1.5)
    assert translated() == second.translate(TEXTS, max_length=12)
    stop_while_in_use(process, server)
    lines = [json.loads(line) for line in (tmp_path / "access.log").read_text().splitlines()]
    assert {line["status"] for line in lines} <= {200, 503}
    assert not any(text in (tmp_path / "access.log").read_text() for text in TEXTS)


def stop_while_in_use(process: Any, server: Any) -> None:
    """SIGTERM answers what is in flight, says that it is not ready, and exits with 0."""
    statuses: list[int] = []
    body = {"prompt": [" ".join(TEXTS)] * 64, "max_length": 500, "min_length": 500, "model": "writer-1"}
    threads = [Thread(target=lambda: statuses.append(post(server, body))) for _ in range(6)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 20
    while "heedful_active_texts 0.0" in server.get("/metrics").text:
        assert time.monotonic() < end
    process.send(signal.SIGTERM)
    while (ready := server.get("/ready")).status_code == 200:
        assert time.monotonic() < end
    assert ready.json() == {"status": "draining"}
    assert post(server, body) == 503
    for thread in threads:
        thread.join()
    assert 200 in statuses
    assert {*statuses} <= {200, 503}  # those that came after the signal
    assert process.wait().code == 0


@pytest.mark.parametrize(("drain", "signals"), [("0.2", 1), ("60", 2)])
def test_a_stream_that_outlasts_draining_ends_with_an_error(
    fork_server: Any, tmp_path: Path, drain: str, signals: int
) -> None:
    """After --drain, or at a second signal: one clear event, no traceback, and an exit with 0."""
    save_model(tmp_path / "m", "laptop-writer")
    process, server = start_server(fork_server, tmp_path, "m", "--drain", drain, "--max-tokens", "500000")
    body = {"prompt": TEXTS[0], "max_length": 500_000, "min_length": 500_000, "stream": True}
    with httpx.stream("POST", f"{server.url}/api/v1/generate", json=body, timeout=60, trust_env=False) as stream:
        lines = stream.iter_lines()
        next(lines)
        for _ in range(signals):
            process.send(signal.SIGTERM)
            time.sleep(0.3)
        *_, name, data = (line for line in lines if line)
    assert name == "event: error"
    assert "the server is shutting down" in data
    assert process.wait().code == 0
    assert "Traceback" not in process.output()


def post(server: Any, body: dict[str, Any]) -> int:
    status: int = server.post("/api/v1/generate", body).status_code
    return status


def test_mistakes_end_in_one_line(fork_server: Any, tmp_path: Path) -> None:
    save_model(tmp_path / "m")
    (tmp_path / "other").mkdir()
    shutil.copytree(tmp_path / "m", tmp_path / "other" / "m")
    (tmp_path / "short").write_text("secret\n")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "lines").write_text("0123456789abcdef\n0123456789abcdef\n")
    (tmp_path / "umlaut").write_text("ü123456789abcdef")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe0123456789abcdef")
    cases: list[tuple[tuple[str, ...], int, str]] = [
        (("m", "--host", "0.0.0.0"), 2, "--token-file FILE or HEEDFUL_TOKEN"),
        (("m", "--token-file", "short"), 2, "the token has 6 characters and needs 16"),
        (("m", "--token-file", "empty"), 2, "empty is empty"),
        (("m", "--token-file", "lines"), 2, "one line of ASCII"),
        (("m", "--token-file", "umlaut"), 2, "one line of ASCII"),
        (("m", "--token-file", "bytes"), 2, "bytes cannot be read as a token: it is not text"),
        (("m", "--token-file", "absent"), 2, "absent cannot be read as a token: No such file"),
        (("m", "other/m"), 2, "both called 'm'"),
        (("nothing",), 4, "nothing is not a model folder"),
        (("m", "--languages", "x=en-de"), 2, "no model 'x' is served"),
        (("m", "--languages", "english"), 2, "write two codes, as in en-de"),
        (("m", "--log-file", "absent/log"), 1, "absent/log"),
        (("m", "--host", "256.1.1.1"), 2, "needs a token"),
    ]
    for words, code, message in cases:
        done = fork_server.run("serve", *words, "--port", "0", folder=tmp_path)
        assert done.code == code, done.output
        assert message in done.output
        lines = [line for line in done.output.strip().splitlines() if "every user of this machine can read" not in line]
        assert len(lines) == 1, done.output


@pytest.mark.parametrize("variable", ["HEEDFUL_TOKEN", None])
def test_a_token_opens_a_server_bound_to_every_address(fork_server: Any, tmp_path: Path, variable: str | None) -> None:
    save_model(tmp_path / "m")
    token = "0123456789abcdef0123"
    (tmp_path / "token.txt").write_text(token + "\n")
    (tmp_path / "token.txt").chmod(0o644)
    before = f"import os; os.environ['{variable}'] = '{token}'" if variable else ""
    file = () if variable else ("--token-file", "token.txt")
    process, server = start_server(fork_server, tmp_path, "m", "--host", "0.0.0.0", *file, before=before)
    assert 'curl -s -H "Authorization: Bearer $TOKEN"' in (tmp_path / "printed").read_text()
    assert ("chmod 600 token.txt" in process.output()) == (variable is None)
    assert server.get("/api/v1/models").status_code == 401
    assert server.get("/ready", headers={"host": "10.1.2.3:80"}).status_code == 200
    authorized = {"authorization": f"Bearer {token}", "host": "models.example"}
    assert server.get("/api/v1/models", headers=authorized).status_code == 200
    process.send(signal.SIGINT)
    assert process.wait().code == 0
