"""Offline partitions, shared by tests."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.decide.failover_scope import FailoverScope, TopicScope
from mirror_core.decide.mirror_snapshot import DestinationSnapshot, MirrorSnapshot
from mirror_core.model.names import Offset, Partition
from mirror_core.model.source_observation import ObservedTopic, SourceObservation
from mirror_core.runbook import drain, planned_steps, promotion_steps
from mirror_core.runbook.planned_steps import PlannedSteps
from mirror_core.state.journal import Journal
from tests.support import failover_views
from tests.support.cluster_names import LINK
from tests.support.failover_views import P0, P1, source_of
from tests.support.memory_state import journal_of
from tests.support.mirror_views import RUN

healthy_view = failover_views.healthy_view

SEEN = SourceObservation(
    mirror=LINK.mirror.name,
    at_ms=1_500,
    topics=(ObservedTopic(topic="orders", ends=(10, 22), ages_ms=(0, 1_000), offline=(1,)),),
)


@pytest.fixture
def view() -> MirrorSnapshot:
    """Nobody leads the second partition; the data plane saw its end before."""
    known = healthy_view()
    return replace(
        known,
        source=replace(source_of(known), stable_ends={P0: Offset(10)}, offline_partitions=(P1,)),
        source_observation=SEEN,
    )


@pytest.fixture
def left(view: MirrorSnapshot) -> MirrorSnapshot:
    return replace(view, left_behind=frozenset({P1}))


def there(view: MirrorSnapshot) -> DestinationSnapshot:
    assert isinstance(view.destination, DestinationSnapshot)
    return view.destination


# -- the steps ---------------------------------------------------------------------------------------------------------

CLIENT = SimpleNamespace(name="east")


@pytest.fixture
def journal() -> Journal:
    made = journal_of(RUN.id, "fence", "drain", "promote")
    made.save_checkpoint(
        "begin", FailoverScope(topics=(TopicScope(name="orders", drained=(0,), as_is=(), left_behind=(1,)),))
    )
    return made


@pytest.fixture
def steps(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> PlannedSteps:
    for module in (drain, planned_steps, promotion_steps):
        monkeypatch.setattr(module, "ClusterClient", lambda *a, **k: nullcontext(CLIENT))
    return PlannedSteps(LINK, cast("Any", None), cast("Any", journal.log), journal)


def led(monkeypatch: pytest.MonkeyPatch, *partitions: Partition) -> None:
    monkeypatch.setattr(drain, "find_offline_partitions", lambda client, wanted: frozenset(wanted) - set(partitions))
