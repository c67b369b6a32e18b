"""What a failback's salvage says of a fence that an unplanned failover has left owed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.model.names import Offset, Partition, PartitionOffsets
from mirror_core.model.pending_fence import PendingFence
from mirror_core.runbook import divergent_tail_steps
from mirror_core.runbook.divergent_tail_steps import TailSteps
from mirror_core.state.state_records import State
from mirror_core.sync.fence_acls import VerifiedFence
from tests.support.fence_states import OWED

A0 = Partition("a", 0)


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
