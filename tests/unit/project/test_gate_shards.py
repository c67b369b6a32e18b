"""Files of tests are shared out the same way every time, evenly, and none is forgotten."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.gate.__main__ import DURATIONS, ROOT
from tests.gate.shards import lanes

FILES = [f"f{number}" for number in range(9)]
TABLE = {file: float(seconds) for file, seconds in zip(FILES, (90, 80, 70, 30, 30, 20, 10, 5, 1), strict=True)}


def test_longest_first_to_whoever_has_least_to_do() -> None:
    assert lanes([FILES], TABLE, 3) == ((("f0", "f5", "f7"),), (("f1", "f4", "f8"),), (("f2", "f3", "f6"),))


def test_what_stays_together_has_a_process_of_its_own_and_its_lane_gets_less_to_do() -> None:
    assert lanes([FILES, ["f0", "f1", "a"]], TABLE | {"a": 1000.0}, 2)[0] == (("a", "f0", "f1"),)


def test_fewer_files_than_lanes_leave_no_empty_process() -> None:
    assert lanes([["a"], []], {}, 3) == ((("a",),),)


@given(
    st.dictionaries(st.sampled_from(FILES), st.floats(0, 500)),
    st.sets(st.sampled_from(FILES)),
    st.sets(st.sampled_from(["x", "y"])),
    st.integers(1, 4),
)
def test_every_file_is_in_exactly_one_process_whatever_the_order_in_which_files_are_found(
    table: dict[str, float], files: set[str], others: set[str], count: int
) -> None:
    shares = lanes([sorted(files), sorted(others)], table, count)

    assert sorted(file for lane in shares for process in lane for file in process) == sorted([*files, *others])
    assert lanes([sorted(files, reverse=True), sorted(others, reverse=True)], table, count) == shares
    assert len(shares) <= count


def test_the_table_of_durations_names_no_file_that_is_gone() -> None:
    """A renamed file would count as unknown, and one process would end minutes after the others."""
    table: dict[str, dict[str, float]] = json.loads(DURATIONS.read_text(encoding="utf-8"))
    files = {file for durations in table.values() for file in durations}
    assert files
    assert [file for file in sorted(files) if not (ROOT / file).is_file()] == []
