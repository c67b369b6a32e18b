"""Figures keep their type; labels and texts stand in one golden file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mirror_core.model.figures import (
    FIGURES,
    FigureKey,
    Figures,
    FigureScalar,
    FigureValue,
    Unit,
    format_figures,
    format_value,
    list_figure_rows,
    to_figure_documents,
)

GOLDEN = Path(__file__).with_name("figures.golden.txt")
EXAMPLES: dict[Unit, FigureScalar] = {
    Unit.OFFSETS: 1_204,
    Unit.PARTITIONS: 1,
    Unit.NUMBER: 12_345,
    Unit.SECONDS: 2.14,
    Unit.AGE: 7_300.0,
    Unit.TIME: 93_000,
    Unit.BYTES: 12_600,
    Unit.OFFSET: 12_345,
    Unit.YES_NO: True,
    Unit.TEXT: "west",
}


def test_each_figure_is_written_as_the_golden_file_has_it() -> None:
    """Written anew when it does not exist: look at it, then commit it."""
    lines = [
        f"{key} | {definition.label} | {text}"
        for key, definition in FIGURES.items()
        for text in [format_value(key, code) for code in definition.texts or (EXAMPLES[definition.unit],)]
    ]
    if not GOLDEN.exists():
        GOLDEN.write_text("\n".join([*lines, ""]))
    assert GOLDEN.read_text().splitlines() == lines


def test_each_key_has_one_definition() -> None:
    assert set(FIGURES) == set(FigureKey)
    assert all(key.value.isidentifier() and key.value.islower() for key in FigureKey)


@pytest.mark.parametrize("key", FigureKey)
def test_unknown_is_neither_zero_nor_none(key: FigureKey) -> None:
    assert format_value(key, None) == "unknown"
    assert format_value(key, {}) == "none"
    assert format_value(key, ()) == "none"


@pytest.mark.parametrize("key", FigureKey)
def test_a_number_that_no_format_takes_stops_nobody(key: FigureKey) -> None:
    for value in (10**18, -(10**30), float("inf"), float("nan")):
        assert format_value(key, value)
    assert format_value(FigureKey.FENCE_SINCE_MS, 10**18) == str(10**18)


@pytest.mark.parametrize("value", [None, 0, 3, 2.0, True, "a", ("a", "b"), {"a": None, "b": 2.5, "c": "x", "d": False}])
def test_a_value_comes_back_from_json_as_it_was(value: FigureValue) -> None:
    decoded = msgspec.json.decode(msgspec.json.encode({FigureKey.OWNER: value}), type=dict[FigureKey, FigureValue])
    assert decoded == {FigureKey.OWNER: value}
    assert type(decoded[FigureKey.OWNER]) is type(value)


def test_a_figure_of_a_newer_version_stays_readable() -> None:
    decoded = msgspec.json.decode(b'{"never_heard_of": 3}', type=dict[FigureKey, FigureValue])
    assert list(list_figure_rows(decoded)) == [("never heard of", "3")]
    assert msgspec.json.encode(decoded) == b'{"never_heard_of":3}'


def test_values_by_name_get_a_row_each_and_of_many_only_the_first() -> None:
    hooks: Figures = {FigureKey.SWITCH_HOOKS: {f"h{n:02}": "told" for n in range(12)}}
    rows = list(list_figure_rows(hooks))
    assert rows[0] == ("switch hooks, h00", "told")
    assert (len(rows), rows[-1]) == (11, ("switch hooks", "2 more"))
    names = format_value(FigureKey.HELD_RANGES, tuple(f"a-{n}" for n in range(12)))
    assert names.endswith("a-9 and 2 more")


def test_json_has_value_unit_and_text() -> None:
    (figure,) = to_figure_documents({FigureKey.LOST_OFFSETS: 1_204}).values()
    assert (figure.value, figure.unit, figure.text) == (1_204, Unit.OFFSETS, "1,204 offsets")
    assert format_figures({FigureKey.LOST_OFFSETS: 1, FigureKey.SOURCE_SEEN_S: None}).count("; ") == 1
