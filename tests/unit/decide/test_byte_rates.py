"""Sizes and rates as people write them."""

from __future__ import annotations

import pytest

from mirror_core.decide.task_assignment import BYTE_UNITS, parse_bytes_per_s
from mirror_core.model.errors import BadRequest


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("50000000B", 50_000_000),
        ("50MB/s", 50_000_000),
        ("50 MB/s", 50_000_000),
        ("1.5kB", 1_500),
        ("2GB", 2_000_000_000),
        ("1KiB", 1_024),
        ("0.5MiB/s", 524_288),
        ("1GiB", 1_073_741_824),
        ("7B/s", 7),
    ],
)
def test_a_rate_is_read(text: str, rate: int) -> None:
    assert parse_bytes_per_s(text) == rate


@pytest.mark.parametrize("text", ["", "MB", "-1", "1e6", "5Mb", "5MB/m", "1,5MB", "5 MB /s", "٥MB", "5MB\n", "off"])
def test_anything_else_is_refused_with_the_forms_that_there_are(text: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_bytes_per_s(text)
    for unit in BYTE_UNITS:
        assert unit in str(refused.value)


@pytest.mark.parametrize("text", ["50", "1.5", "1/s", "50000000"])
def test_a_number_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="has no unit"):
        parse_bytes_per_s(text)


@pytest.mark.parametrize("text", ["0", "0.0MB", "0.9B"])
def test_a_rate_at_which_nothing_moves_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="nothing is read at that rate; `mirrorbook mirror pause` ends"):
        parse_bytes_per_s(text)
