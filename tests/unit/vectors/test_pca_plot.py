"""The PCA plot of word vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heedful.errors import HeedfulError, UsageError
from heedful.vectors.pca_plot import draw_word_map, project_to_2d


def test_projection_preserves_distances_and_reports_variance() -> None:
    flat = np.random.default_rng(0).normal(size=(30, 2)) * [5, 2]
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(10, 10)))[0][:2]
    points, variance = project_to_2d((flat @ rotation).astype(np.float32))
    assert sum(variance) == pytest.approx(1, abs=1e-4)
    assert variance[0] > variance[1]
    distances = np.linalg.norm(flat[:, None] - flat[None], axis=-1)
    np.testing.assert_allclose(np.linalg.norm(points[:, None] - points[None], axis=-1), distances, atol=1e-3)


def test_projection_does_not_depend_on_word_order() -> None:
    vectors = np.random.default_rng(2).normal(size=(8, 6)).astype(np.float32)
    np.testing.assert_allclose(project_to_2d(vectors)[0], project_to_2d(vectors[::-1])[0][::-1], atol=1e-4)


def test_overlapping_words_are_drawn(tmp_path: Path) -> None:
    vectors = np.random.default_rng(3).normal(size=(20, 5)).astype(np.float32)
    vectors[5:15] = vectors[4]
    file = draw_word_map([f"word{i}" for i in range(20)], vectors, tmp_path / "map.png")
    assert file.read_bytes().startswith(b"\x89PNG")


def test_invalid_plots_are_refused(tmp_path: Path) -> None:
    vectors = np.eye(3, dtype=np.float32)
    with pytest.raises(UsageError, match="at least three words, got 2"):
        draw_word_map(["a", "b"], vectors[:2], tmp_path / "map.png")
    with pytest.raises(HeedfulError, match=r"map\.xyz cannot be drawn"):
        draw_word_map(["a", "b", "c"], vectors, tmp_path / "map.xyz")
