"""The pictures of docs/studio.md, taken of a model that the caller names.

    HEEDFUL_PICTURES=docs/studio HEEDFUL_PICTURED=translate-1 pytest tests/browser/test_pictures.py

HEEDFUL_PICTURED: the folder of a translator from English to German.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

TEXT = "A young girl in a yellow dress is riding her bicycle."
WIDTH, HEIGHT = 1280, 860


@pytest.fixture
def address() -> Iterator[str]:
    if "HEEDFUL_PICTURES" not in os.environ:
        pytest.skip("HEEDFUL_PICTURES is not set: no pictures are taken")
    command = [sys.executable, "-m", "heedful", "studio", os.environ["HEEDFUL_PICTURED"], "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        printed = re.search(r"http://\S+", process.stdout.readline())
        assert printed is not None
        yield printed.group()
        process.terminate()


def open_view(browser: Any, address: str, fragment: str, theme: str) -> Any:
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=theme)
    page = context.new_page()
    page.add_init_script("sessionStorage.setItem('lessons', 'hidden')")
    page.goto(f"{address}#/{fragment}")
    page.wait_for_selector("main .card")
    page.wait_for_function("() => !document.querySelector('main [aria-busy=true], main .skeleton')", timeout=60_000)
    page.wait_for_timeout(600)
    return page


def test_pictures_of_the_views(browser: Any, address: str) -> None:
    folder, text = Path(os.environ["HEEDFUL_PICTURES"]), quote(TEXT)
    off = quote(json.dumps([{"kind": "ablate", "part": "positions"}]))
    for name, theme, fragment in (
        ("use", "light", f"use?text={text}&chosen=3"),
        ("look", "light", f"look?text={text}&pick=b10"),
        ("switch", "dark", f"switch?text={text}&off={off}&part=decoder.1.cross"),
        ("steps", "light", f"steps?text={text}&position=4&phase=cross&layer=1"),
    ):
        page = open_view(browser, address, fragment, theme)
        page.screenshot(path=str(folder / f"{name}.png"))
        page.context.close()


def test_an_animation_of_switching_a_part_off(browser: Any, address: str) -> None:
    from PIL import Image

    page = open_view(browser, address, f"switch?text={quote(TEXT)}", "light")
    frames = [page.screenshot()]
    for name in ("without the aligning head", "without positions", "may look ahead"):
        page.get_by_role("button", name=name).click()
        page.wait_for_timeout(2500)
        frames.append(page.screenshot())
    pictures = [
        Image.open(io.BytesIO(frame)).convert("P", palette=Image.Palette.ADAPTIVE, colors=64) for frame in frames
    ]
    file = Path(os.environ["HEEDFUL_PICTURES"]) / "switch.gif"
    pictures[0].save(file, save_all=True, append_images=pictures[1:], duration=1800, loop=0, optimize=True)
    page.context.close()
