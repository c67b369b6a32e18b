"""The state topic's records: long ones, unreadable ones, forged ones, and what compaction leaves of them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.model.errors import Indeterminate
from mirror_core.model.mirror import GroupSyncTime, Lease, NameFilters
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.run import StepRecord, StepState
from mirror_core.model.run_checkpoints import Checkpoint
from mirror_core.model.source_observation import ObservedEnd, ObservedTopic, SourceObservation
from mirror_core.state import record_encoding, state_records
from mirror_core.state.record_encoding import PIECE_BYTES, SCHEMA_VERSION, drop_replaced_rows, parse_mirror_name
from mirror_core.state.state_records import State, Tombstone, TransactionalIdNumber, format_key
from tests.support.memory_state import fold, journal_of
from tests.support.mirror_views import MIRROR

LEASE = Lease(mirror=MirrorName("m"), owner="me", generation=1, heartbeat_ms=1, writers_until_ms=1)
RUN = "m-failover-20261122T090000-a1b2"


def kept(size: int, kind: str = "Drained") -> Checkpoint:
    return Checkpoint(run=RUN, step="drain", kind=kind, version=1, value="é" * (size // 2))


def test_a_long_value_is_cut_into_pieces_that_brokers_take_and_put_together_again() -> None:
    long = kept(3 * PIECE_BYTES)
    rows = list(State().to_rows(long))
    assert len(rows) == 5
    assert all(len(key) + len(value or b"") < 2 * PIECE_BYTES for key, value in rows)
    assert list(fold(rows).checkpoints.values()) == [long]


def test_a_shorter_value_leaves_no_pieces_of_the_longer_one_behind() -> None:
    state = State()
    written = list(state.to_rows(kept(3 * PIECE_BYTES)))
    state.put(kept(3 * PIECE_BYTES))
    later = list(state.to_rows(kept(PIECE_BYTES + 100)))
    assert [key for key, value in later if value is None] == [f"piece/{format_key(kept(1))}/{n}" for n in (2, 3)]
    read = fold([*written, *later])
    assert list(read.checkpoints.values()) == [kept(PIECE_BYTES + 100)]
    forgotten = list(read.to_rows(Tombstone(kept(1))))
    assert {value for _, value in forgotten} == {None}
    assert {key for key, _ in forgotten} >= {key for key, value in later if value is not None}


def test_a_long_value_with_a_piece_missing_or_altered_is_the_trouble_of_its_mirror() -> None:
    (first, rest), *others = State().to_rows(kept(2 * PIECE_BYTES))
    assert rest is not None
    for broken in (others, [(first, rest[:-1] + b"x"), *others]):
        state = fold(broken)
        assert not state.checkpoints
        with pytest.raises(Indeterminate, match="its pieces are missing"):
            state.require_readable(MirrorName("m"))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["put", "long", "forget", "garbage"])), max_size=12),
    st.data(),
)
def test_without_what_is_replaced_a_log_says_the_same(acts: list[tuple[int, str]], data: st.DataObject) -> None:
    written, rows = State(), list[tuple[str, bytes | None]]()
    for number, (kind, act) in enumerate(acts):
        record = kept(PIECE_BYTES * 2 + number if act == "long" else 10 + number, f"K{kind}")
        if act == "garbage":
            rows.append((format_key(record), b"garbage"))
        else:
            rows += written.to_rows(Tombstone(record) if act == "forget" else record)
            written.put(Tombstone(record) if act == "forget" else record)
    says_the_same_cut_at(data.draw(st.integers(0, len(rows))), rows)  # answers end anywhere


def says_the_same_cut_at(cut: int, rows: list[tuple[str, bytes | None]]) -> None:
    parts = [rows[:cut], rows[cut:]]
    found, each = fold(row for part in parts for row in drop_replaced_rows(part)), fold(rows)
    assert found == each
    assert list(found.checkpoints) == list(each.checkpoints)


@pytest.mark.parametrize("later", [b"garbage", next(State().to_rows(kept(10)))[1]])
def test_pieces_whose_head_was_replaced_are_not_kept(later: bytes) -> None:
    long = list(State().to_rows(kept(2 * PIECE_BYTES)))
    for cut in range(len(long) + 2):
        says_the_same_cut_at(cut, [*long, (format_key(kept(1)), later)])


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("lease/m", b"garbage", "it is not readable"),
        ("lease/m", b"[" * 100_000, "it is not readable"),
        ("lease/m", b'{"v": 2, "data": {"mirror": 7}}', "it is not readable"),
        ("lease/m", b'{"v": 2}', "it is not readable"),
        ("lease/m", b'{"v": 1, "data": {}}', "schema version 1 is older than this Mirrorbook's"),
        ("lease/m", b'{"v": 3, "data": {}}', "schema version 3 is not known to this Mirrorbook"),
        (f"run/{RUN}", b"\xff", "it is not readable"),
        (f"step/{RUN}/drain", b"", "it is not readable"),
        ("partition/m/t/0", b'{"v": 2, "head": {"pieces": 1, "sha256": ""}}', "its pieces are missing"),
        ("piece/lease/m/x", b"...", "it is no piece"),
    ],
)
def test_one_unreadable_record_stops_the_mirror_that_it_is_about_and_no_other(
    key: str, value: bytes, words: str
) -> None:
    state = fold([*State().to_rows(LEASE), *State().to_rows(replace(LEASE, mirror=MirrorName("n"))), (key, value)])
    with pytest.raises(Indeterminate) as caught:
        state.require_readable(MirrorName("m"))
    assert f"key {key}: {words}" in str(caught.value)
    state.require_readable(MirrorName("n"))
    assert state.leases[MirrorName("n")].owner == "me"
    state.apply(key, None)
    state.require_readable(MirrorName("m"))


def test_what_a_stranger_wrote_over_a_record_is_not_taken_for_it_and_not_passed_over() -> None:
    (key, value), *_ = State().to_rows(LEASE)
    state = fold([(key, value), (key, b"garbage")])
    assert not state.leases
    state.apply(key, value)
    assert state.leases == {"m": LEASE}
    state.require_readable(MirrorName("m"))


def test_a_record_under_another_ones_key_is_refused() -> None:
    ((_, value),) = State().to_rows(LEASE)
    state = fold([("lease/n", value)])
    assert not state.leases
    with pytest.raises(Indeterminate, match="what it says is about something else"):
        state.require_readable(MirrorName("n"))
    state.require_readable(MirrorName("m"))


def test_a_strangers_record_that_names_no_mirror_is_listed_and_stops_nobody() -> None:
    state = fold([("whatever", b"x"), ("step/no-run/drain", b"x")])
    assert set(state.unreadable) == {"whatever", "step/no-run/drain"}
    state.require_readable(MirrorName("whatever"))


@pytest.mark.parametrize(
    "key", ["partition/m", "partition/m/t/x", "partition/m/t/²", "step/x", "settings/m", "", "/", "piece/"]
)
def test_a_tombstone_that_makes_no_sense_forgets_nothing(key: str) -> None:
    state = fold([*State().to_rows(LEASE), (key, None)])
    assert state.leases == {"m": LEASE}


@given(st.lists(st.tuples(st.text(max_size=40), st.none() | st.binary(max_size=60))))
def test_nothing_that_anybody_writes_ends_a_reader(records: list[tuple[str, bytes | None]]) -> None:
    prefixes = ("", "mirror/", "partition/m/", "piece/", "run/", "checkpoint/a/b/")
    state = fold((prefix + key, value) for key, value in records for prefix in prefixes)
    for key in state.unreadable:
        parse_mirror_name(key)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([10, PIECE_BYTES, 2 * PIECE_BYTES, None])), max_size=6)
)
def test_compaction_changes_nothing_of_what_is_read(changes: list[tuple[str, int | None]]) -> None:
    writer, log = State(), list[tuple[str, bytes | None]]()
    for name, size in changes:
        record = Tombstone(kept(1, name)) if size is None else kept(size, name)
        log += writer.to_rows(record)
        writer.put(record)
    newest = {key: place for place, (key, _) in enumerate(log)}
    compacted = [row for place, row in enumerate(log) if newest[row[0]] == place]
    read = fold(compacted)
    assert read.checkpoints == writer.checkpoints == fold(log).checkpoints
    assert not read.unreadable
    left = {key for key, value in compacted if value is not None}
    assert left == {key for record in writer.checkpoints.values() for key, _ in State().to_rows(record)}


def test_a_step_of_fifty_thousand_offsets_fits() -> None:
    evidence = {"positions": ", ".join(f"topic-{n}={n}" for n in range(50_000))}
    record = StepRecord(run=RUN, step="drain", state=StepState.DONE, attempt=1, started_ms=1, evidence=evidence)
    assert fold(State().to_rows(record)).steps == {(RUN, "drain"): record}


def test_the_version_is_said_in_every_value() -> None:
    for _, value in State().to_rows(LEASE):
        assert value is not None
        assert msgspec.json.decode(value)["v"] == SCHEMA_VERSION


def test_what_was_seen_of_a_source_is_kept_also_of_many_partitions_and_forgotten_with_its_key() -> None:
    many = tuple(
        ObservedTopic(topic=f"t-{n:05}", ends=(2**40 + n, None, 7), ages_ms=(0, 0, 1_500), offline=(2,))
        for n in range(10_000)
    )
    sighting = SourceObservation(mirror=MirrorName("m"), at_ms=10_000, topics=many)
    rows = list(State().to_rows(sighting))
    assert len(rows) > 2, "cut into pieces"
    state = fold(rows)
    assert state.source_observations == {"m": sighting}
    assert parse_mirror_name("source_observation/m") == "m"
    seen = dict(sighting.get_ends())
    assert len(seen) == 20_000, "what was never seen is not there"
    assert seen[Partition("t-00001", 2)] == ObservedEnd(Offset(7), 8_500)
    assert Partition("t-00001", 2) in set(sighting.get_offline_partitions())
    assert fold([*rows, *state.to_rows(Tombstone(sighting))]).source_observations == {}


def test_the_number_of_a_transactional_id_is_kept_for_its_mirror_and_role() -> None:
    state, mirror = State(), MirrorName("orders")
    for record in (TransactionalIdNumber(mirror, "control", 1), TransactionalIdNumber(mirror, "data", 7)):
        for key, value in State().to_rows(record):
            state.apply(key, value)
    assert {role: found.number for role, found in state.id_numbers[mirror].items()} == {"control": 1, "data": 7}
    assert parse_mirror_name("writer/orders/control") == mirror
    copied = state.copy()
    copied.put(TransactionalIdNumber(mirror, "control", 2))
    assert state.id_numbers[mirror]["control"].number == 1
    state.apply("writer/orders/control", None)
    assert list(state.id_numbers[mirror]) == ["data"]


@pytest.mark.parametrize("run", ["x/../../../../etc-mirrorbook", "..", f"{RUN}/..", "a\nb", ""])
def test_an_id_that_would_leave_its_folder_is_unreadable(run: str) -> None:
    """Whoever writes the state topic decides what Mirrorbook believes, and not which files it writes."""
    begun = replace(journal_of(RUN).run, id=run)
    state = fold(State().to_rows(begun))
    assert not state.runs
    assert list(state.unreadable) == [f"run/{run}"]


def test_every_kind_of_record_has_a_well_formed_key() -> None:
    assert state_records._DECODERS.keys() == record_encoding.SEGMENT_COUNTS.keys()


@pytest.mark.parametrize(
    ("listed_by", "is_current"),
    [
        (None, True),
        ((("a.*", "b"), ("ab",)), True),
        ((("b", "a.*", "c"), ()), True),
        ((("a.*",), ("ab",)), False),
        ((("a.*", "b"), ("ab", "b")), False),
    ],
)
def test_a_sync_by_filters_that_left_groups_out_is_none(listed_by: NameFilters | None, is_current: bool) -> None:
    synced = GroupSyncTime(mirror=MIRROR.name, synced_ms=1, followed=True, listed_by=listed_by)
    mirror = replace(MIRROR, groups=("a.*", "b"), exclude_groups=("ab",))
    state = fold([row for record in (mirror, synced) for row in State().to_rows(record)])
    assert state.find_group_sync(MIRROR.name) == (synced if is_current else None)


def test_a_leader_that_was_ahead_is_forgotten_when_the_next_one_appends() -> None:
    """But by a mirror whose own records it has dated: its ages go by these."""
    leases = {
        MirrorName(name): Lease(mirror=MirrorName(name), owner="o", generation=1, heartbeat_ms=1, writers_until_ms=2)
        for name in ("m", "n")
    }
    times = {format_key(leases[MirrorName("m")]): 6, format_key(leases[MirrorName("n")]): 7_200_000}
    state = State(leases=leases, append_times=times, last_append_ms=7)
    assert state.list_leader_times_ms(MirrorName("m")) == [7, 6]
    assert state.list_leader_times_ms(MirrorName("n")) == [7, 7_200_000]
    assert State().list_leader_times_ms(MirrorName("m")) == []
