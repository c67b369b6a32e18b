"""Which offsets a mirror has committed itself on its destination: over restarts, and beside other processes."""

from __future__ import annotations

from mirror_core.model.names import MirrorName, Offset, Partition, PartitionOffsets
from mirror_core.model.sync_state import OwnGroupOffsets
from mirror_core.state.record_encoding import parse_mirror_name
from mirror_core.state.state_records import State, Tombstone, format_key
from mirror_core.sync.offset_commits import OwnCommittedOffsets

NAME = MirrorName("m")
P, Q = Partition("t", 0), Partition("t", 1)


def written(records: list[OwnGroupOffsets], state: State | None = None) -> State:
    """As another process reads it."""
    rows = [row for record in records for row in (state or State()).to_rows(record)]
    found = State() if state is None else state.copy()
    for key, value in rows:
        found.apply(key, value)
    return found


def record(group: str, **offsets: int) -> OwnGroupOffsets:
    by_partition = {Partition("t", int(name[1:])): Offset(offset) for name, offset in offsets.items()}
    return OwnGroupOffsets(mirror=NAME, group=group, offsets=PartitionOffsets.from_mapping(by_partition))


def of(own: OwnCommittedOffsets, group: str, partition: Partition) -> set[int]:
    return {int(offset) for offset in own.find_known(group, partition)}


def test_what_was_committed_is_known_after_a_restart() -> None:
    own = OwnCommittedOffsets(NAME, State())
    own.record_offset("g/ä b", P, Offset(7))
    own.record_offset("g/ä b", Q, Offset(3))
    state = written(own.pop_unwritten())
    assert own.pop_unwritten() == []
    again = OwnCommittedOffsets(NAME, state)
    assert (of(again, "g/ä b", P), of(again, "g/ä b", Q), of(again, "h", P)) == ({7}, {3}, set())
    assert of(OwnCommittedOffsets(MirrorName("other"), state), "g/ä b", P) == set()
    assert parse_mirror_name(format_key(record("g/ä b"))) == NAME


def test_an_offset_that_was_ours_once_is_not_after_we_have_committed_another() -> None:
    """1101 was written, then the group was set back to 130: whoever reads to 1101 there has done it himself."""
    own = OwnCommittedOffsets(NAME, State())
    own.record_offset("g", P, Offset(1101))
    state = written(own.pop_unwritten())
    own.record_offset("g", P, Offset(130))
    own.read(state)
    assert of(own, "g", P) == {130}
    own.read(written(own.pop_unwritten(), state))
    assert of(own, "g", P) == {130}


def test_what_another_process_has_committed_counts_until_we_commit_ourselves() -> None:
    own = OwnCommittedOffsets(NAME, written([record("g", p0=5)]))
    own.record_offset("g", P, Offset(8))
    own.read(written([record("g", p0=9, p1=2)]))
    assert (of(own, "g", P), of(own, "g", Q)) == ({8, 9}, {2})
    own.record_offset("g", P, Offset(8))
    assert of(own, "g", P) == {8}
    assert [one.offsets.to_mapping() for one in own.pop_unwritten()] == [{P: 8, Q: 2}]


def test_groups_wait_their_turn_to_be_written_and_what_was_not_written_comes_again() -> None:
    own = OwnCommittedOffsets(NAME, State())
    for group in ("b", "a", "c"):
        own.record_offset(group, P, Offset(1))
        own.record_offset(group, Q, Offset(1))
    first = own.pop_unwritten(max_offsets=3)
    assert [one.group for one in first] == ["b"]
    own.requeue(first)
    assert [one.group for one in own.pop_unwritten(max_offsets=4)] == ["a", "c"]
    assert [one.group for one in own.pop_unwritten(max_offsets=1)] == ["b"], "one at least"


def test_groups_that_are_nowhere_any_more_are_forgotten() -> None:
    state = written([record("gone", p0=1), record("here", p0=2)])
    own = OwnCommittedOffsets(NAME, state)
    gone = own.forget_other_groups({"here"})
    assert [one.group for one in gone] == ["gone"]
    for one in gone:
        state.put(Tombstone(one))
    assert [one.group for one in state.group_offsets[NAME].values()] == ["here"]
    assert (of(own, "gone", P), of(own, "here", P)) == (set(), {2})
