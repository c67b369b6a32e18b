"""Until when topics that belong together are whole: never later than the truth, and unknown where nobody can tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.dataplane.lookout import Memory
from mirror_core.dataplane.wholeness import MOST, Wholeness
from mirror_core.decide.figures import figures_of
from mirror_core.decide.together import in_words, together
from mirror_core.decide.view import View
from mirror_core.kafka.config import load_config
from mirror_core.model.errors import BadRequest
from mirror_core.model.names import HEARTBEATS, MirrorName, Offset, Partition
from mirror_core.model.run import Mode
from mirror_core.model.sighting import Seen, Sighting, TopicSeen
from tests.unit import test_decide_loss
from tests.unit.test_decide_loss import A0, A1, B0, DESTINATION, status
from tests.unit.test_watch import offsets

view = test_decide_loss.view
SIGHTING = Sighting(
    mirror=MirrorName("m"),
    at_ms=100_000,
    topics=(
        TopicSeen(topic="a", ends=(100, 50), ago_ms=(0, 2_000), whole_ago_ms=((1, 7_000),)),
        TopicSeen(topic="b", ends=(10,)),
    ),
    listed_ms=100_000,
)
STATUSES = {p: status(p) for p in (A0, A1, B0)}
ALL_THERE = offsets(a0=100, a1=50, b0=10)


def upto(positions: Mapping[Partition, Offset], *groups: tuple[str, ...]) -> list[int | None]:
    return [one.upto_ms for one in together(groups, STATUSES, SIGHTING, positions)]


def test_where_all_has_arrived_it_is_whole_up_to_the_look_that_is_longest_ago() -> None:
    assert upto(ALL_THERE) == [98_000]
    assert upto({**ALL_THERE, A1: Offset(90)}) == [98_000], "what came after the look is not dated"


def test_a_partition_that_is_behind_counts_from_when_it_was_whole() -> None:
    assert upto({**ALL_THERE, A1: Offset(49)}) == [93_000]


def test_what_was_never_whole_or_has_no_position_is_unknown_for_all_that_belong_to_it() -> None:
    (behind,) = together((), STATUSES, SIGHTING, {**ALL_THERE, B0: Offset(9)})
    assert (behind.upto_ms, behind.last) == (None, (B0,))
    assert upto({A0: Offset(100), A1: Offset(50)}) == [None]
    (never,) = together((), STATUSES, None, ALL_THERE)
    assert never.upto_ms is None
    assert in_words(never) == "unknown: of a-0, a-1, b-0"
    unseen = {**STATUSES, Partition("c", 0): status(Partition("c", 0))}
    assert [one.upto_ms for one in together((), unseen, SIGHTING, ALL_THERE)] == [None]


def test_only_topics_that_belong_together_wait_for_each_other() -> None:
    positions = {**ALL_THERE, B0: Offset(9)}
    assert upto(positions, ("a",), ("b", "a"), (".*",)) == [98_000, None, None]
    (nothing,) = together((("x.*",),), STATUSES, SIGHTING, positions)
    assert in_words(nothing) == "unknown: the mirror has no such topic"


def test_heartbeats_are_nobodys_topic() -> None:
    beat = Partition(f"{HEARTBEATS}m", 0)
    (one,) = together((), {**STATUSES, beat: status(beat)}, SIGHTING, ALL_THERE)
    assert one.upto_ms == 98_000


def test_a_plan_without_the_source_says_it(view: View) -> None:
    here = replace(DESTINATION, positions={**ALL_THERE, A1: Offset(20)})
    lost = replace(view, sighting=SIGHTING, destination=here, together=(("a", "b.*"),))
    assert dict(figures_of(lost))["complete up to, topics a, b.* together"] == (
        "1970-01-01 00:01:33.000 UTC; the last is a-1"
    )
    drained = replace(lost, drained=True)
    assert not [name for name, _ in figures_of(drained) if name.startswith("complete")], "nothing is missing"
    assert not [n for n, _ in figures_of(replace(view, drained=True, mode=Mode.PLANNED)) if n.startswith("complete")]


# -- the looks --------------------------------------------------------------------------------------------------------


def looked(whole: Wholeness, at_ms: int, ends: dict[Partition, Offset], positions: dict[Partition, Offset]) -> None:
    whole.seen({p: Seen(end, at_ms) for p, end in ends.items()})
    whole.at(positions)


def test_a_copy_that_is_behind_is_whole_up_to_the_newest_look_that_it_has_passed() -> None:
    whole = Wholeness()
    for second in range(1, 5):
        looked(whole, 1_000 * second, {A0: Offset(10 * second)}, {A0: Offset(10 * second - 15)})
    assert whole.since() == {A0: 2_000}, "at 25 it has passed 20"
    whole.at({A0: Offset(40)})
    assert whole.since() == {}
    assert whole.behind() == frozenset()


def test_a_partition_that_nobody_writes_stays_whole_without_being_asked_for() -> None:
    whole = Wholeness()
    looked(whole, 1_000, {A0: Offset(10)}, {A0: Offset(10)})
    whole.seen({A0: Seen(Offset(10), 9_000)})
    assert whole.behind() == frozenset()
    whole.seen({A0: Seen(Offset(20), 10_000)})
    assert whole.since() == {A0: 9_000}


def test_one_that_is_copied_anew_is_not_whole_any_more() -> None:
    whole = Wholeness()
    looked(whole, 1_000, {A0: Offset(10)}, {A0: Offset(10)})
    looked(whole, 2_000, {A0: Offset(20)}, {A0: Offset(3)})
    assert whole.since() == {}
    assert whole.behind() == {A0}


def test_far_behind_looks_become_fewer_and_never_wrong() -> None:
    whole = Wholeness()
    for second in range(1, 1_000):
        looked(whole, second, {A0: Offset(second)}, {A0: Offset(0)})
    for position in range(1, 999):
        whole.at({A0: Offset(position)})
        assert all(at_ms <= position for at_ms in whole.since().values())
    assert len(whole._waiting[A0]) <= MOST


def test_what_an_earlier_process_knew_is_a_beginning() -> None:
    whole = Wholeness({A0: 500})
    looked(whole, 1_000, {A0: Offset(10), A1: Offset(10)}, {A0: Offset(5), A1: Offset(5)})
    assert whole.since() == {A0: 500}
    whole.keep({A1})
    assert whole.since() == {}
    assert whole.behind() == {A1}


def test_since_when_something_lacks_is_known_also_of_what_was_never_whole() -> None:
    whole = Wholeness()
    for second in range(1, 60):
        looked(whole, second, {A0: Offset(10), A1: Offset(second)}, {A0: Offset(7), A1: Offset(second - 1)})
    assert whole.unreached() == {A0: 1, A1: 58}
    looked(whole, 60, {A0: Offset(12), A1: Offset(60)}, {A0: Offset(10), A1: Offset(60)})
    assert whole.unreached().keys() == {A0}
    assert whole.unreached()[A0] > 1, "what there was before is there"
    whole.at({A0: Offset(12)})
    assert whole.unreached() == {}


def test_a_sighting_tells_of_those_that_are_behind() -> None:
    memory = Memory(MirrorName("m"), {}, recorded=STATUSES)
    memory.ends(1_000, offsets(a0=10, a1=20, b0=5), [])
    memory.wholeness.at(offsets(a0=10, a1=20, b0=4))
    memory.ends(3_000, offsets(a0=11, a1=25, b0=6), [])
    memory.wholeness.at(offsets(a0=11, a1=24, b0=4))
    assert dict(memory.sighting().whole()) == {A1: 1_000}


# -- the file ---------------------------------------------------------------------------------------------------------


def test_what_belongs_together_is_said_in_the_file_also_for_the_way_home(tmp_path: Path) -> None:
    path = tmp_path / "mirrorbook.yaml"
    head = "clusters:\n  east: {bootstrap.servers: '127.0.0.1:1'}\nmirrors:\n  m:\n    "
    path.write_text(f"{head}together: [[orders.*, payments], [b]]\n")
    config = load_config(path)
    for name in ("m", "m-back"):
        assert config.belonging(MirrorName(name)) == (("orders.*", "payments"), ("b",))
    assert config.belonging(MirrorName("n")) == ()
    for wrong, why in (
        ("together: orders", "a list of lists"),
        ("together: [orders]", "a list of lists"),
        ("together: [[]]", "a list of lists"),
        ("together: [['(']]", "not a regular expression"),
        ("apart: []", "`owner`, `switch` and `together` only"),
    ):
        path.write_text(f"{head}{wrong}\n")
        with pytest.raises(BadRequest, match=why):
            load_config(path)
