"""Each listed right is taken away once: it is named before anything is given up, or the run ends well without it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Final

import pytest

from mirror_core.decide.failover_plan import PlanDecision
from mirror_core.decide.truncation import AllowedStrategies
from mirror_core.kafka.config import load_config
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.preflight import RightStatus, check_cluster
from mirror_core.model.acl import Operation, Permission, Resource
from mirror_core.model.errors import BadRequest
from mirror_core.model.findings import Finding
from mirror_core.model.names import ClusterName, Partition
from mirror_core.model.run import FailbackStrategy, RunMode, RunState
from mirror_core.rights.required_acls import ClusterRole, LackingRight, RequiredAcl
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.broker_faults import killed
from tests.support.failback_runs import failback_of, failed_over, go_home
from tests.support.failover_runs import app_topic, commit
from tests.support.kafka_clients import Pair, produce, read_all
from tests.support.least_rights import ALLOWED, USERS, granted, keep_only, listed
from tests.support.mirrored_topics import new_mirror

pytestmark = [pytest.mark.cluster, pytest.mark.drill]

BOTH: Final = tuple(ClusterRole)
UNREADABLE: Final = frozenset({"topics_hidden", "source_unseen", "destination_unseen", "cluster_unseen"})
"""Their reasons name the right that reading needs."""


def name_of(need: RequiredAcl) -> str:
    return "-".join(filter(None, (need.role, need.principal, need.operation, need.resource, need.prefix)))


def is_implied(need: RequiredAcl) -> bool:
    """By ALTER, or ALTER_CONFIGS, on the cluster, where the same role has that: it stands for clusters without."""
    implying = {Operation.DESCRIBE: Operation.ALTER, Operation.DESCRIBE_CONFIGS: Operation.ALTER_CONFIGS}
    same_role = [n for n in ALLOWED if (n.role, n.principal, n.resource) == (need.role, need.principal, need.resource)]
    return need.resource is Resource.CLUSTER and implying.get(need.operation) in [n.operation for n in same_role]


def is_spared(need: RequiredAcl) -> bool:
    is_optional_of_data = need.principal == "data" and need.resource in (Resource.GROUP, Resource.CLUSTER)
    return bool(need.lost_feature or need.prefix) or is_implied(need) or is_optional_of_data


def is_named(need: RequiredAcl, cluster: SandboxCluster, findings: Iterable[Finding]) -> bool:
    right = str(LackingRight(ClusterName(cluster.name), USERS[need.principal], need))
    named = [f.values for f in findings if f.subject == cluster.name]
    listings = [values["lacking"] for values in named if "lacking" in values]
    by_strategy = [values["rights"] for values in named if "rights" in values]
    return any(right in listing for listing in listings if isinstance(listing, tuple)) or any(
        f"needs {need.operation} on {need.resource.lower()} " in str(rights) for rights in by_strategy
    )


def assert_refused_for(need: RequiredAcl, cluster: SandboxCluster, decision: PlanDecision) -> None:
    assert is_named(need, cluster, decision.reasons) or UNREADABLE & {reason.code for reason in decision.reasons}, [
        str(reason) for reason in decision.reasons
    ]


@pytest.mark.parametrize("mode", list(RunMode))
@pytest.mark.parametrize("need", ALLOWED, ids=name_of)
def test_a_failover_without_one_right_is_refused_or_done(
    pair: Pair, tmp_path: Path, need: RequiredAcl, mode: RunMode
) -> None:
    """The source has the rights of a source only, the destination those of a destination."""
    if mode is RunMode.UNPLANNED and need.role is ClusterRole.SOURCE:
        pytest.skip("a dead source is asked for nothing")
    keep_only(pair.east, listed([ClusterRole.SOURCE]))
    keep_only(pair.west, listed([ClusterRole.DESTINATION]))
    topic = app_topic(pair)
    sent = produce(pair.east, topic, 20)
    commit(pair.east, f"g-{topic}", topic, 7)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(f"g-{topic}",))
    mirrored.copy()
    mirror_commands.run_sync(mirrored.link)
    cluster = pair.east if need.role is ClusterRole.SOURCE else pair.west
    keep_only(cluster, listed([need.role], need))

    checked = check_cluster(load_config(pair.config_path).cluster(cluster.name)).rights
    wanted = need.role, need.principal, need.resource, need.operation
    rights = [r for r in checked if (r.role, r.principal, r.resource, r.operation) == wanted]
    (right,) = [r for r in rights if r.permission == Permission.ALLOW]
    assert (right.verdict is RightStatus.OK) is is_implied(need)
    with killed(pair.east) if mode is RunMode.UNPLANNED else nullcontext():
        if wanted[1:] == ("control", Resource.TOPIC, Operation.READ) and need.role is ClusterRole.DESTINATION:
            with pytest.raises(BadRequest, match="needs READ"):  # the state cannot be read
                mirrored.failover.decide(mode)
            return
        decision = mirrored.failover.decide(mode)
        if decision.reasons:
            assert_refused_for(need, cluster, decision)
            return
        assert is_spared(need) or is_named(need, cluster, decision.plan.warnings), decision.plan.warnings
        run = mirrored.failover.begin(decision.plan.hash, mode)
        assert mirrored.failover.drive(run.id).state is RunState.DONE
    assert mirrored.statuses[Partition(topic, 0)].lmo == 20
    assert read_all(pair.west, topic)[:20] == sorted(sent)


@pytest.mark.parametrize("need", ALLOWED, ids=name_of)
def test_a_failback_without_one_right_is_refused_or_done(pair: Pair, tmp_path: Path, need: RequiredAcl) -> None:
    """It lacks where the cluster plays that role on the way home: `recreate` deletes topics before it copies."""
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = failed_over(pair, tmp_path, topic)
    produce(pair.east, topic, 3)  # a super user passes every fence
    sent = produce(pair.west, topic, 5)
    cluster = pair.east if need.role is ClusterRole.DESTINATION else pair.west
    # west is read on the way home, and keeps the runs of the mirror that goes on afterwards
    keep_only(cluster, listed([ClusterRole.DESTINATION] if cluster is pair.east else BOTH, need))
    failback, allowed = failback_of(mirrored), AllowedStrategies(FailbackStrategy.RECREATE)
    decision = failback.decide(allowed)
    if decision.reasons:
        assert_refused_for(need, cluster, decision)
        return
    run = failback.begin(decision.plan.hash, allowed)
    failback.drive(run.id)
    go_home(failback, run.id)
    assert read_all(pair.east, topic)[-5:] == sorted(sent)


def test_a_failback_is_refused_where_the_new_primary_cannot_be_a_destination_again(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = failed_over(pair, tmp_path, topic)
    keep_only(pair.west, listed([ClusterRole.SOURCE]))
    decision = failback_of(mirrored).decide(AllowedStrategies(FailbackStrategy.NONE))
    needs = [n for n in ALLOWED if (n.role, n.resource) == (ClusterRole.DESTINATION, Resource.TRANSACTIONAL_ID)]
    assert [is_named(need, pair.west, decision.reasons) for need in needs] == [True]


def test_there_and_home_with_the_listed_rights_and_no_other(pair: Pair, tmp_path: Path) -> None:
    """By a planned failover without a tail; by an unplanned one with a tail the drills of each strategy do."""
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    for cluster in (pair.east, pair.west):
        assert granted(cluster) == listed(BOTH)
    mirrored = failed_over(pair, tmp_path, topic)
    failback, allowed = failback_of(mirrored), AllowedStrategies(FailbackStrategy.NONE)
    sent = produce(pair.west, topic, 5)
    run = failback.begin(failback.plan(allowed).hash, allowed)
    failback.drive(run.id)
    go_home(failback, run.id)
    assert read_all(pair.east, topic)[-5:] == sorted(sent)
    for cluster in (pair.east, pair.west):
        assert granted(cluster) == listed(BOTH)
