"""A studio with trained models, and a real browser in front of it. Skips by name where Chromium is missing."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from heedful.training.dates_demo import demo_arguments

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SMALL = ("--set", "model.width=64", "--set", "training.batch_tokens=2048", "--set", "training.evaluate_every=40")
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
OPINIONS = {"good": ("warm", "funny", "bright", "moving"), "bad": ("dull", "empty", "slow", "clumsy")}
THINGS = ("film", "story", "song", "play", "book", "show", "cast", "scene", "plot", "part")


def reviews() -> Iterator[str]:
    for label, words in OPINIONS.items():
        for word in words:
            for thing in THINGS:
                for ending in ("", " indeed", " in the end"):
                    yield f"{label}\ta {word} {thing}{ending}\n"


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory, fork_server: Any) -> Path:
    """A folder with three trained models, trained once for all test processes."""

    def train(*arguments: str) -> None:
        ended = fork_server.run("train", *arguments, folder=folder)
        assert ended.code == 0, ended.output

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    folder = shared / "studio-workspace"
    with (shared / "studio-workspace.lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            folder.mkdir()
            dates = demo_arguments(folder / "data")
            plain = dates[: dates.index("--set")]
            train(*_with_steps(dates, 160), *SMALL, "--out", "dates")
            train(
                *plain, "--model", "recurrent", "--steps", "30", "--set", "model.width=32", *SMALL[2:],
                "--set", "tokenizer.kind=characters", "--device", "cpu", "--out", "dates-recurrent",
            )  # fmt: skip
            (folder / "reviews.tsv").write_text("label\ttext\n" + "".join(reviews()))
            train("classify", "reviews.tsv", "--steps", "40", "--out", "reviews")
            (folder / "ready").touch()
    return folder


def _with_steps(arguments: list[str], steps: int) -> list[str]:
    index = arguments.index("--steps") + 1
    return [*arguments[:index], str(steps), *arguments[index + 1 :]]


@dataclass
class Studio:
    """A running studio."""

    address: str
    folder: Path

    def view(self, fragment: str) -> str:
        return f"{self.address}#/{fragment}"


@pytest.fixture(scope="session")
def studio(workspace: Path) -> Iterator[Studio]:
    command = [sys.executable, "-m", "heedful", "studio", "dates", "dates-recurrent", "reviews", "--no-browser"]
    environment = {**os.environ, "HEEDFUL_CACHE": str(workspace / "cache"), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=workspace, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        address = re.search(r"http://\S+", process.stdout.readline())
        assert address is not None
        yield Studio(address.group(), workspace)
        process.terminate()
        process.stdout.read()
        assert process.wait(30) == 0


@dataclass
class Watched:
    """A page whose errors and requests are noted; `check` fails on any."""

    page: Any
    host: str
    problems: list[str] = field(default_factory=list)

    def open(self, address: str) -> Any:
        self.page.goto(address)
        self.page.wait_for_selector("main .card, main .split")
        return self.page

    def check(self) -> None:
        assert not self.problems


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def new_page(browser: Any, studio: Studio) -> Iterator[Callable[..., Watched]]:
    """Opens pages of a size and theme; at the end none may have logged an error or asked another host."""
    opened: list[tuple[Any, Watched]] = []

    def open_page(width: int = 1280, theme: str = "light") -> Watched:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce",
            permissions=["clipboard-read", "clipboard-write"],
        )  # fmt: skip
        page = context.new_page()
        page.set_default_timeout(120_000)
        watched = Watched(page, studio.address)
        page.on("console", lambda line: line.type == "error" and watched.problems.append(line.text))
        page.on("pageerror", lambda error: watched.problems.append(str(error)))
        page.on("request", lambda request: _note_foreign(watched, request.url))
        opened.append((context, watched))
        return watched

    yield open_page
    for context, watched in opened:
        context.close()
        watched.check()


def _note_foreign(watched: Watched, url: str) -> None:
    if not url.startswith((watched.host.removesuffix("/studio/"), "data:", "blob:")):
        watched.problems.append(f"a request to {url}")


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, which finds what screen readers and keyboards cannot use."""
    folder = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed: no axe-core")
    for _ in range(2):
        done = subprocess.run([npm, "install", "--silent", "axe-core@4"], cwd=folder, capture_output=True, check=False)
        if done.returncode == 0:
            return (folder / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")
        time.sleep(1)
    pytest.skip("axe-core could not be installed from npm")
