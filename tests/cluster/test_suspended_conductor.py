"""A conductor sleeps for minutes before an action, and wakes up when the mirror is another's: what he does is undone.

Each test puts him to sleep right before the request that changes rights, by a detour around it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.dataplane.task_runner import RecordTrimmed
from mirror_core.kafka.acl_requests import create_acls, delete_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.acl import Acl
from mirror_core.model.errors import LostOwnership
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import RunMode, RunState
from mirror_core.model.timing import now_ms
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.run_services import InProcessCopy
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.sync import acl_ledger
from tests.support.cluster_admin import rights_of
from tests.support.failback_runs import failback_of, go_home
from tests.support.failover_runs import app_topic, denied
from tests.support.kafka_clients import Pair, produce
from tests.support.mirrored_topics import Mirrored
from tests.support.pending_fences import copied
from tests.support.unplanned_runs import begin

pytestmark = pytest.mark.cluster

Action = Callable[[ClusterClient, Collection[Acl]], None]


def another(mirrored: Mirrored) -> Failover:
    return Failover(mirrored.link, mirrored.services, started_by="another")


def asleep_before(action: Action, meanwhile: Callable[[], object], wanted: Callable[[Acl], bool]) -> Action:
    """The action, before whose first request about such entries something else happens."""
    slept = list[int]()

    def late(client: ClusterClient, acls: Collection[Acl]) -> None:
        if not slept and any(wanted(acl) for acl in acls):
            slept.append(1)
            meanwhile()
        action(client, acls)

    return late


def test_copiers_that_are_silenced_after_somebody_elses_abort_may_write_again(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)
    before = rights_of(pair.west)
    run = begin(mirrored.failover)
    late = asleep_before(
        create_acls, lambda: another(mirrored).abort(run.id), lambda acl: acl.principal == "User:mirror-data"
    )
    monkeypatch.setattr(acl_ledger, "create_acls", late)
    with pytest.raises(LostOwnership):
        mirrored.failover.drive(run.id)
    assert rights_of(pair.west) == before, "a denial of nobody would stop the mirror for good"
    produce(pair.east, topic, 5)
    mirrored.copy()


def test_a_fence_that_is_lifted_after_another_run_began_is_put_up_again(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)
    run = begin(mirrored.failover, RunMode.PLANNED)
    for name in ("prove", "fence"):
        mirrored.failover.run_step(run.id, name)

    def meanwhile() -> None:
        assert another(mirrored).drive(run.id).state is RunState.ABORTED
        again = begin(another(mirrored), RunMode.PLANNED)
        for name in ("prove", "fence"):
            another(mirrored).run_step(again.id, name)

    late = asleep_before(delete_acls, meanwhile, lambda acl: acl.name == topic)
    monkeypatch.setattr(acl_ledger, "delete_acls", late)
    with pytest.raises(LostOwnership):
        mirrored.failover.abort(run.id)
    assert denied(pair.east, topic), "a run that was given up has lifted the next one's fence"


@pytest.mark.slow
def test_a_promotion_that_slept_over_a_failback_promotes_nothing(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a second life, so that there is somebody to be promoted who was demoted before."""
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)

    def there_and_back(run_id: str) -> None:
        assert another(mirrored).drive(run_id).state is RunState.DONE
        failback = failback_of(mirrored)
        back = failback.begin(failback.plan().hash)
        failback.drive(back.id)
        go_home(failback, back.id)

    there_and_back(begin(mirrored.failover, RunMode.PLANNED).id)
    mirrored.copy()
    run = begin(mirrored.failover, RunMode.PLANNED)
    demotion = "User:app"
    late = asleep_before(delete_acls, lambda: there_and_back(run.id), lambda acl: acl.principal == demotion)
    monkeypatch.setattr(acl_ledger, "delete_acls", late)
    with pytest.raises(LostOwnership):
        mirrored.failover.drive(run.id)
    assert denied(pair.west, topic), "applications may write on both sides"
    assert not denied(pair.east, topic)


def test_a_drain_that_goes_on_after_somebody_elses_abort_ends_and_keeps_no_data_plane_away(
    pair: Pair, tmp_path: Path
) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)
    told = list[str]()

    def copy(link: MirrorLink) -> InProcessCopy:
        def aborted(
            ends: dict[Partition, Offset], timeout_s: float, until: Callable[[int], None], deleted: RecordTrimmed
        ) -> None:
            until(now_ms() + 10_000)
            assert another(mirrored).abort(run.id).state is RunState.ABORTED
            told.append("aborted")
            until(now_ms() + 20_000)
            told.append("copied")

        return aborted

    failover = Failover(mirrored.link, replace(mirrored.services, copy=copy), started_by="test")
    run = begin(failover, RunMode.PLANNED)
    with pytest.raises(LostOwnership):
        failover.drive(run.id)
    assert told == ["aborted"]
    assert mirrored.state.leases[mirrored.name].released
