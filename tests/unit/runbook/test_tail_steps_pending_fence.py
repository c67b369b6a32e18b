"""A failback's salvage: a fence that is owed, and beginnings that only the old source has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.decide.mirror_snapshot import ClusterTopic
from mirror_core.kafka.log_offsets import OffsetsResult
from mirror_core.model.errors import Indeterminate
from mirror_core.model.names import Offset, Partition, PartitionOffsets
from mirror_core.model.pending_fence import PendingFence
from mirror_core.runbook import divergent_tail_steps
from mirror_core.runbook.divergent_tail_steps import TailSteps
from mirror_core.state.state_records import State
from mirror_core.sync.fence_acls import VerifiedFence
from tests.support.fence_states import OWED
from tests.support.loss_views import status

A0, A1 = Partition("a", 0), Partition("a", 1)


KNOWN = OWED.add_since_offsets({A0: Offset(5)})


class Writer:
    """Holds one debt."""

    def __init__(self) -> None:
        self.state = State(pending_fences={OWED.mirror: KNOWN})
        self.put_last: PendingFence | None = None

    def now_ms(self) -> int:
        return 1

    def put(self, debt: PendingFence) -> None:
        self.put_last = debt


@pytest.mark.parametrize(("authorizer", "command"), [(True, False), (False, True), (False, False)])
def test_a_fence_stands_only_where_something_keeps_writers_out(
    monkeypatch: pytest.MonkeyPatch, authorizer: bool, command: bool
) -> None:
    writer: Any = Writer()
    link: Any = SimpleNamespace(mirror=SimpleNamespace(name=OWED.mirror), source="east")
    nothing: Any = None
    forgotten = list[tuple[str, str]]()
    monkeypatch.setattr(
        divergent_tail_steps, "forget_lift", lambda cluster, mirror, _: forgotten.append((cluster, mirror))
    )
    monkeypatch.setattr(divergent_tail_steps, "with_uncopied", lambda link, log, old, fence, recorded: fence)
    steps = TailSteps(link, nothing, writer, nothing)
    fence = VerifiedFence(authorizer=authorizer, command=command, still_s=1.0, ends={A0: Offset(7)})
    steps._record_fence(nothing, fence)
    assert forgotten == ([("east", OWED.mirror)] if authorizer or command else [])
    if authorizer or command:
        ends = PartitionOffsets.from_mapping({A0: Offset(7)})
        assert writer.put_last == replace(
            KNOWN, applied_at_ms=writer.put_last.applied_at_ms, log_ends=ends, by_command=command
        )
        assert writer.put_last.applied_at_ms is not None
    else:
        assert writer.put_last is None, "nobody is kept out there"


@pytest.mark.parametrize("cut", [(), (A1,), (A0, A1)], ids=["nothing was cut", "has no leader", "one has"])
def test_a_beginning_that_nobody_can_tell_of_is_named_and_no_other_partition_holds_a_failback_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cut: tuple[Partition, ...]
) -> None:
    statuses = {p: replace(status(p), deleted_until=Offset(9) if p in cut else None) for p in (A0, A1)}

    def list_starts(_: object, partitions: list[Partition], points: object) -> list[OffsetsResult]:
        return [OffsetsResult({p: Offset(9) for p in partitions if p == A0}, frozenset({A1} & set(partitions)))]

    nothing: Any = None
    services: Any = SimpleNamespace(run_dir=lambda _: tmp_path)
    steps = TailSteps(nothing, services, nothing, cast("Any", SimpleNamespace(run_id="r")))
    monkeypatch.setattr(TailSteps, "statuses", lambda _: statuses)
    topics = {"a": ClusterTopic(id="s", partitions=2)}
    monkeypatch.setattr(TailSteps, "_list_old_source", lambda *_: (topics, [A0, A1]))
    monkeypatch.setattr(divergent_tail_steps, "list_points_with_retry", list_starts)
    old: Any = SimpleNamespace(name="east", timeout_s=1.0)
    if not cut:
        assert steps.save_missing_beginnings(old) == {}
        return
    with pytest.raises(Indeterminate) as raised:
        steps.save_missing_beginnings(old)
    assert str(A1) in str(raised.value)
    assert str(A0) not in str(raised.value)
