"""Weights overwritten in place, stuck workers, deadlines, languages of models."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from heedful.engine.continuous_engine import ContinuousEngine
from heedful.engine.engine_request import EngineRequest
from heedful.errors import CheckpointError, UsageError
from heedful.server.application import create_app
from heedful.server.language_pairs import LanguagePair, parse_pair, recorded_pair
from heedful.server.model_registry import ModelRegistry, load_unmapped
from heedful.server.server_settings import ServerSettings
from served import running


def test_overwriting_the_weights_file_changes_no_loaded_model(make_trained: Any, tmp_path: Path) -> None:
    folder = make_trained("laptop-translator").save(tmp_path / "m")
    trained = load_unmapped(folder, "cpu")
    before = [weight.clone() for weight in trained.model.parameters()]
    file = folder / "model.safetensors"
    with file.open("r+b") as stream:
        stream.seek(file.stat().st_size // 2)
        stream.write(b"\x7f" * (file.stat().st_size // 2))
    assert all(map(torch.equal, before, trained.model.parameters()))
    with pytest.raises(CheckpointError, match="damaged"):
        load_unmapped(folder, "cpu")


@pytest.fixture
def registry(make_trained: Any, tmp_path: Path) -> Iterator[ModelRegistry]:
    """A registry of the folder m, which is looked at when a test asks for it."""
    make_trained("laptop-translator").save(tmp_path / "m")
    engine = ContinuousEngine()
    started = ModelRegistry(engine, device="cpu", notice=lambda _: None)
    started.add("m", tmp_path / "m")
    yield started
    engine.close()


def look_twice(registry: ModelRegistry) -> Any:
    """The model that is served once a folder has changed no more between two looks."""
    registry.reload_changed()
    registry.reload_changed()
    return registry.served["m"]


def test_a_folder_that_comes_back_is_loaded(make_trained: Any, registry: ModelRegistry, tmp_path: Path) -> None:
    first = registry.served["m"].trained
    (tmp_path / "m").rename(tmp_path / "away")
    gone = look_twice(registry)
    assert gone.trained is first
    assert "not a model folder" in gone.problem
    make_trained("laptop-translator", seed=7).save(tmp_path / "m")
    back = look_twice(registry)
    assert back.trained is not first
    assert back.problem == ""


def test_a_folder_is_loaded_once_it_has_stopped_changing(
    make_trained: Any, registry: ModelRegistry, tmp_path: Path
) -> None:
    """A copy that takes long is not read again and again while it grows."""
    first, weights = registry.served["m"].trained, tmp_path / "m" / "model.safetensors"
    whole = make_trained("laptop-translator", seed=7).save(tmp_path / "next") / weights.name
    content = whole.read_bytes()
    for share in (0.2, 0.6, 1.0):
        weights.write_bytes(content[: int(share * len(content))])
        registry.reload_changed()
        assert registry.served["m"].trained is first
        assert registry.served["m"].problem == ""
    for other in ("manifest.json", "config.json"):
        (tmp_path / "m" / other).write_bytes((whole.parent / other).read_bytes())
    assert look_twice(registry).trained is not first


def test_a_request_in_parts_keeps_the_model_that_it_began_with(
    make_trained: Any, registry: ModelRegistry, tmp_path: Path
) -> None:
    """A text is scored by the model that wrote it, also if that was replaced meanwhile."""
    before = registry.served["m"]
    make_trained("laptop-translator", seed=7).save(tmp_path / "m")
    after = look_twice(registry)
    assert after.trained is not before.trained
    for served in (before, after):
        request = EngineRequest("m", "call", call=lambda trained: trained.translate("2 May 1980"))
        (answer,) = registry.engine.submit(request, served.routes).result(20.0)
        assert answer == served.trained.translate("2 May 1980")
    assert before.trained.translate("2 May 1980") != after.trained.translate("2 May 1980")


def test_a_replaced_model_leaves_memory_at_the_next_look(
    make_trained: Any, registry: ModelRegistry, tmp_path: Path
) -> None:
    before = weakref.ref(registry.served["m"].trained.model)
    make_trained("laptop-translator", seed=7).save(tmp_path / "m")
    look_twice(registry)
    registry.reload_changed()
    assert before() is None


def test_a_link_is_served_under_its_own_name_and_followed(make_trained: Any, tmp_path: Path) -> None:
    for seed, version in enumerate(("v1", "v2")):
        make_trained("laptop-translator", seed=seed).save(tmp_path / version)
    current, other = tmp_path / "current", tmp_path / "other"
    current.symlink_to("v1")
    registry = create_app([current], notice=lambda _: None).state.serving.registry
    first = registry.served["current"].trained
    other.symlink_to("v2")
    other.replace(current)
    registry.reload_changed()
    registry.reload_changed()
    assert registry.served["current"].trained is not first
    registry.engine.close()


ABLATION = [{"kind": "ablate", "part": "encoder.0"}]


@pytest.mark.parametrize(
    ("path", "options"), [("embed", {}), ("look", {}), ("embed", {"interventions": ABLATION}), ("explain", {})]
)
def test_a_stuck_worker_is_not_ready(make_trained: Any, path: str, options: dict[str, Any]) -> None:
    """In the batches, and beside them."""
    release, trained = Event(), make_trained("laptop-translator")
    trained.iter_embed = trained.look = trained.explain = lambda *_, **__: release.wait(30) and []
    with running({"m": trained}, ServerSettings(stuck_after=0.3, deadline=0.5)) as server:
        assert server.get("/ready").status_code == 200
        assert server.post(f"/api/v1/{path}", {"text": "2 May", **options}).status_code == 503
        answer = server.get("/ready")
        assert (answer.status_code, answer.json()) == (503, {"status": "stuck"})
        assert server.get("/health").status_code == 200
        release.set()
        end = time.monotonic() + 10
        while server.get("/ready").status_code != 200:
            assert time.monotonic() < end


def test_a_request_past_its_deadline_is_503_with_a_time_to_retry(make_trained: Any) -> None:
    with running({"m": make_trained("laptop-writer")}, ServerSettings(deadline=0.05)) as server:
        body = {"prompt": ["May 1980"] * 64, "max_length": 1000, "min_length": 1000}
        answer = server.post("/api/v1/generate", body)
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == "the request was not complete by its deadline"
        assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("train", "pair"),
    [
        (["../data/train.en", "../data/train.de"], "en-de"),
        (["news_en.txt", "news_pt.txt.gz"], "en-pt"),
        (["train.src", "train.tgt"], None),
        (["pairs.tsv"], None),
        (["train.en", "valid.en"], None),
    ],
)
def test_languages_come_from_the_names_of_the_training_files(
    tmp_path: Path, train: list[str], pair: str | None
) -> None:
    (tmp_path / "recipe.toml").write_text(f"[data]\ntrain = {train!r}\n".replace("'", '"'))
    recorded = recorded_pair(tmp_path)
    assert (str(recorded) if recorded else None) == pair


def test_languages_come_from_the_names_of_columns(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text('[data]\ntrain = ["x.tsv"]\ncolumns = ["en", "fr"]\n')
    assert recorded_pair(tmp_path) == LanguagePair("en", "fr")
    assert recorded_pair(tmp_path / "absent") is None


@pytest.mark.parametrize("text", ["en", "en-en", "english-german", "", "../en-de"])
def test_a_pair_is_two_codes(text: str) -> None:
    with pytest.raises(UsageError, match="two codes"):
        parse_pair(text)
