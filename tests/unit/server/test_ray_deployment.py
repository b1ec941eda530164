"""The application under Ray: replicas that answer alike, one of which is killed; a model over a dataset."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import heedful
from heedful.errors import UsageError
from heedful.server.run_server import bind

os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # on cores that are busy with other tests
ray = pytest.importorskip("ray", reason="ray is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # ray's own
TEXTS = ["2 May 1980", "3 June", "on Monday"]


@pytest.fixture(scope="module")
def folder(make_trained: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    trained = make_trained("laptop-translator")
    return Path(trained.save(tmp_path_factory.mktemp("models") / "dates"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    workers = {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}}  # they import what tests do
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False, runtime_env=workers)
    yield
    ray.shutdown()


def test_a_batch_of_a_dataset_gets_the_models_answers(folder: Path) -> None:
    from heedful.server.ray_batches import ModelOnColumn

    translate = ModelOnColumn(folder, device="cpu", beam=2)
    expected = heedful.Translator.load(folder, device="cpu").translate(TEXTS, beam=2)
    assert list(translate({"text": TEXTS})["translation"]) == expected
    embed = ModelOnColumn(folder, column="source", task="embed", device="cpu")
    assert embed({"source": TEXTS, "n": [1, 2, 3]})["vector"].shape == (3, 16)
    with pytest.raises(UsageError, match="no column 'text'; it has words"):
        translate({"words": TEXTS})


@pytest.mark.slow
def test_replicas_answer_alike_and_survive_a_kill(cluster: None, folder: Path) -> None:
    from ray import serve

    from heedful.server.ray_deployment import ray_application

    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(ray_application([folder], replicas=2, cpus=0.5), name="dates")
    url = f"http://127.0.0.1:{port}/api/v1/translate"
    expected = heedful.Translator.load(folder, device="cpu").translate(TEXTS)
    processes = set()
    try:
        for round_ in range(60):
            answer = httpx.post(url, json={"text": TEXTS}, timeout=60, trust_env=False)
            if round_ == 20:
                processes = _replicas()
                assert len(processes) == 2
                os.kill(min(processes), signal.SIGKILL)
            if answer.status_code == 200:
                assert [each["text"] for each in answer.json()["results"]] == expected
            else:
                assert round_ >= 20, answer.text
                assert answer.status_code in (500, 503), answer.text
                time.sleep(0.2)
        assert answer.status_code == 200
    finally:
        serve.shutdown()


@pytest.mark.slow
def test_a_corpus_is_translated_by_workers(cluster: None, folder: Path) -> None:
    pytest.importorskip("pandas", reason="ray[data] is not installed")
    from heedful.server.ray_batches import ModelOnColumn

    dataset = ray.data.from_items([{"text": text} for text in TEXTS * 20])
    options = {"folder": str(folder), "device": "cpu"}
    translated = dataset.map_batches(ModelOnColumn, fn_constructor_kwargs=options, concurrency=2, batch_size=10)
    rows = translated.take_all()
    expected = dict(zip(TEXTS, heedful.Translator.load(folder, device="cpu").translate(TEXTS), strict=True))
    assert len(rows) == 60
    assert all(row["translation"] == expected[row["text"]] for row in rows)


def _replicas() -> set[int]:
    """Process ids of the replicas, which Ray names in their command lines."""
    processes = set()
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            if line.read_bytes().startswith(b"ray::ServeReplica:dates:heedful"):
                processes.add(int(line.parent.name))
    return processes
