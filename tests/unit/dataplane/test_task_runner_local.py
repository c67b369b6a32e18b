"""The in-process copier of a run says until when it writes, before each round of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.copy import task
from mirror_core.dataplane import task_runner
from mirror_core.model.errors import LostOwnership, Unreachable
from mirror_core.model.mirror import GapFilling, PartitionState, PartitionStatus
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.parity_verdict import MirrorVerification, VerifiedEnd
from mirror_core.model.task_messages import TrimmedRange
from mirror_core.model.timing import read_steady_s
from tests.support.sentences import format_sentence


@pytest.fixture
def copier(monkeypatch: pytest.MonkeyPatch) -> task_runner.LocalCopy:
    """Of a mirror that is known by nothing but its name."""

    def assignment(copier: task_runner.LocalCopy, ends: dict[Partition, Offset], end_s: float, limit_s: float) -> Any:
        return SimpleNamespace(end_s=end_s)

    monkeypatch.setattr(task_runner.LocalCopy, "_assignment", assignment)
    monkeypatch.setattr(task_runner, "TopicRelaxation", lambda source, destination, report: None)
    link: Any = SimpleNamespace(source=None, destination=None, mirror=SimpleNamespace(name="m"))
    return task_runner.LocalCopy(link)


def test_a_source_that_hangs_is_not_waited_for_in_silence(
    copier: task_runner.LocalCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the fence, where applications stand still. What comes slowly is waited for."""
    clock, positions = [1000.0], [3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]
    left = iter(positions)

    def run(assignment: Any) -> Any:
        clock[0] += 10
        receipt = SimpleNamespace(partition=Partition("t", 0), next=Offset(next(left)))
        return SimpleNamespace(failures=(), trimmed_ranges=(), receipts=(receipt,), retry_reason="no answer from east")

    monkeypatch.setattr(task, "run", run)
    monkeypatch.setattr(task_runner, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(task_runner, "read_steady_s", lambda: clock[0])
    said = format_sentence("source_silent_for_partitions_pattern")
    with pytest.raises(Unreachable, match=said):
        copier({Partition("t", 0): Offset(5)}, 3600.0, lambda stop_ms: None, lambda deletions: None)
    assert len(list(left)) == 3


def test_what_was_deleted_before_it_was_copied_is_told_before_the_next_round_reads_what_is_recorded(
    copier: task_runner.LocalCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = Partition("t", 0)
    deletion = TrimmedRange(partition=partition, first=Offset(2), next=Offset(4))
    acts: list[object] = []

    def assignment(copier: task_runner.LocalCopy, ends: dict[Partition, Offset], *limits: float) -> Any:
        acts.append("assigned")
        return SimpleNamespace()

    def run(assignment: Any) -> Any:
        first = acts == ["assigned"]
        receipt = SimpleNamespace(partition=partition, next=Offset(2 if first else 5))
        return SimpleNamespace(
            failures=(), trimmed_ranges=(deletion,) * first, receipts=(receipt,), retry_reason="it waits"
        )

    monkeypatch.setattr(task_runner.LocalCopy, "_assignment", assignment)
    monkeypatch.setattr(task, "run", run)
    copier({partition: Offset(5)}, 60.0, lambda stop_ms: None, acts.append)
    assert acts == ["assigned", (deletion,), "assigned", ()]


def test_a_copier_whose_mirror_is_somebody_elses_begins_no_round(
    copier: task_runner.LocalCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, told = list[float](), list[float]()

    def run(assignment: Any) -> Any:
        assert told[-1] == assignment.end_s, "it may write for longer than it has said"
        rounds.append(assignment.end_s)
        return SimpleNamespace(failures=(), trimmed_ranges=(), receipts=(), retry_reason="the source is silent")

    def until(end_s: float) -> None:
        assert end_s > read_steady_s()
        if told:
            raise LostOwnership("another process has taken over this mirror")
        told.append(end_s)

    monkeypatch.setattr(task, "run", run)
    with pytest.raises(LostOwnership):
        copier({Partition("t", 0): Offset(5)}, 60.0, until, lambda deletions: None)
    assert rounds == told


def test_what_was_compared_is_told_to_the_task_with_the_leader_that_held_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another topic of the same name nothing was compared."""
    a, b = Partition("a", 0), Partition("b", 0)
    compared = VerifiedEnd(end=5, destination_epoch=3, at_ms=0, records=5)
    statuses = {
        p: PartitionStatus(
            partition=p, state=PartitionState.MIRRORING, source_topic_id="there", destination_topic_id=f"new {p.topic}"
        )
        for p in (a, b)
    }
    proof = MirrorVerification.from_partitions(
        MirrorName("m"), {a: compared, b: compared}, {"a": "new a", "b": "old b"}
    )
    state = SimpleNamespace(partitions={"m": statuses}, verifications={"m": proof})
    monkeypatch.setattr(task_runner, "read_state", lambda destination: state)
    mirror = SimpleNamespace(name="m", source="east", destination="west", producer_id=1, gaps=GapFilling.MARKERS)
    link: Any = SimpleNamespace(
        source=None,
        destination=None,
        mirror=mirror,
        config=SimpleNamespace(path="", deletion_hold_ms=lambda name: 0),
    )
    made = task_runner.LocalCopy(link)._assignment({a: Offset(5), b: Offset(7)}, 1e9, 1e9)
    assert [(one.partition, one.stop_offset, one.verified_end, one.verified_epoch) for one in made.partitions] == [
        (a, 5, 5, 3),
        (b, 7, None, -1),
    ]


def test_a_comparison_is_waited_for_within_the_time_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = SimpleNamespace(name="m", source="east", destination="west", producer_id=1, gaps=GapFilling.MARKERS)
    monkeypatch.setattr(task_runner, "read_state", lambda destination: SimpleNamespace(partitions={}, verifications={}))
    monkeypatch.setattr(task_runner, "read_steady_s", lambda: 1000.0)
    link: Any = SimpleNamespace(
        source=None,
        destination=None,
        mirror=mirror,
        config=SimpleNamespace(path="", deletion_hold_ms=lambda name: 0),
    )
    for left_s, looks_s in ((300.0, 120.0), (50.0, 40.0), (5.0, 0.0)):
        made = task_runner.LocalCopy(link)._assignment({}, 1000 + min(left_s, 10), 1000 + left_s)
        assert made.stop_ms - made.submitted_ms == min(left_s, 10) * 1000
        assert made.comparison_grace_s == pytest.approx(looks_s, abs=0.01)
