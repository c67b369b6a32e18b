"""Who slept before he denied, woke when his run was given up, and was killed: what he put up is named, and stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_core.kafka.acl_requests import create_acls, delete_acls, wait_until_acls_absent, wait_until_acls_present
from mirror_core.kafka.client import ClusterClient
from mirror_core.mirrors.describe import describe_mirror
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.model.run import RunMode, RunState
from mirror_core.model.timing import now_ms
from mirror_core.sync.fence_acls import build_denials
from tests.support.failover_runs import denied
from tests.support.kafka_clients import Pair
from tests.support.mirrored_topics import Mirrored
from tests.support.scoped_failovers import copied, through

pytestmark = pytest.mark.cluster


def woken_and_killed(mirrored: Mirrored, topic: str) -> None:
    with ClusterClient(mirrored.config.cluster("east")) as east:
        create_acls(east, build_denials([topic]))
        wait_until_acls_present(east, set(build_denials([topic])))


def removed_by_hand(mirrored: Mirrored, topic: str, cluster: str) -> None:
    with ClusterClient(mirrored.config.cluster(cluster)) as client:
        delete_acls(client, tuple(build_denials([topic])))
        wait_until_acls_absent(client, set(build_denials([topic])))


def words(mirrored: Mirrored) -> str:
    return str(describe_mirror(mirrored.link, mirrored.state, now_ms()).facts[FactKey.STRAY_DENIALS].text)


def test_a_fence_that_stands_again_is_named_where_it_stands_unless_a_ledger_has_it(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic = copied(pair, tmp_path)
    first = through(mirrored, "fence")
    assert words(mirrored) == "none", "it is the run's own"
    mirrored.failover.abort(first)
    assert words(mirrored) == "none"
    woken_and_killed(mirrored, topic)
    assert denied(pair.east, topic)
    assert f"had lifted ({first}) stands on east again, or is another's" in words(mirrored)
    removed_by_hand(mirrored, topic, "east")
    assert words(mirrored) == "none"

    second = through(mirrored, "fence")
    woken_and_killed(mirrored, topic)
    assert words(mirrored) == "none", "the run's ledger has it"
    mirrored.failover.abort(second)
    assert words(mirrored) == "none"

    woken_and_killed(mirrored, topic)
    warnings = tuple(map(str, mirrored.failover.plan(RunMode.PLANNED).warnings))
    assert any(line.endswith(f"see `mirrorbook mirror describe {mirrored.name}`") for line in warnings)
    third = through(mirrored, "fence")
    assert "stands on east again" in words(mirrored), (
        "the run relies on it, as on an administrator's, and no ledger has it"
    )
    assert mirrored.failover.drive(third).state is RunState.DONE
    assert denied(pair.west, topic), "the final sync carries it, as it carries an administrator's"
    assert "stands on west again" in words(mirrored)
    removed_by_hand(mirrored, topic, "west")
    assert "on west" not in words(mirrored)
    assert denied(pair.east, topic), "applications could write on both sides"
