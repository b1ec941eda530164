"""A sample of a stream is spread over all of it."""

from __future__ import annotations

import numpy as np
import pytest

from heedful.data.even_sample import EvenSample


@pytest.mark.parametrize("count", [1, 99, 100, 101, 199, 200, 3333, 100_000])
def test_the_sample_of_a_sorted_stream_has_its_mean(count: int) -> None:
    sample = EvenSample[int](100)
    for number in range(count):
        sample.add(number)
    items = sample.items
    assert len(items) == min(count, 100)
    assert items == sorted(set(items))
    assert np.mean(items) == pytest.approx((count - 1) / 2, rel=0.05, abs=1)
    if count > 100:
        assert np.diff(items).max() <= 3 * count / 100
