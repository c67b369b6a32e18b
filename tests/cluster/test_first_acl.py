"""Clusters with `allow.everyone.if.no.acl.found`, as Amazon MSK makes them: a first ACL would shut others out.

Where `authorizer: none` leaves them as they are, everybody can do what he could, through a failover and the way home.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.kafka.authorization_probe import BrokerAuthorization, probe_brokers
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Principal, load_config
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.fence_watcher import check_fence
from mirror_core.mirrors.preflight import RightStatus, check_cluster, check_shut_out, format_unknown_shut_out
from mirror_core.model.acl import Resource
from mirror_core.model.config_sections import AuthorizerKind
from mirror_core.model.findings import Finding
from mirror_core.model.names import ClusterName
from mirror_core.model.run import RunMode, RunState
from mirror_core.model.sync_state import SyncAction, SyncCategory
from mirror_core.rights.first_acl import (
    ALLOW_EVERYONE_SETTING,
    AUTHORIZER_SETTING,
    KAFKA_AUTHORIZER_CLASSES,
    SUPER_USER_CHECK_GROUP,
    SUPER_USERS_SETTING,
    FirstAclEffect,
)
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.cli_process import mirrorbook
from tests.support.cluster_admin import admin_config, restore_rights, rights_of, tool_properties
from tests.support.dedicated_clusters import two_clusters
from tests.support.failback_runs import failback_of, go_home
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, grant, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.topic_equality import assert_parity
from tests.support.unplanned_runs import begin
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

EVERYBODY = (
    *("--allow-principal", "User:*", "--operation", "All"),
    *("--topic", "*", "--group", "*", "--transactional-id", "*", "--cluster"),
)
"""As docs/operate/open-clusters.md has it."""

ALL_USERS = ("app", "admin", "mirror-control", "mirror-data")
"""An application, the super user, and both principals of ours."""


@pytest.fixture(scope="module")
def open_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_clusters(tmp_path_factory.mktemp("open"), extra={ALLOW_EVERYONE_SETTING: "true"}) as pair:
        yield pair


@pytest.fixture
def bare(open_pair: Pair) -> Iterator[Pair]:
    """Without any ACL, of ours or others, on either side."""
    given = {cluster.name: rights_of(cluster) for cluster in (open_pair.east, open_pair.west)}
    try:
        for cluster in (open_pair.east, open_pair.west):
            restore_rights(cluster, frozenset())
        yield open_pair
    finally:
        for cluster in (open_pair.east, open_pair.west):
            restore_rights(cluster, given[cluster.name])


@pytest.fixture
def left_open(bare: Pair, tmp_path: Path) -> Pair:
    """The same clusters by a mirrorbook.yaml that says `authorizer: none` of both."""
    document = yaml.safe_load(bare.config_path.read_text(encoding="utf-8"))
    for side in document["clusters"].values():
        side["authorizer"] = "none"
    path = tmp_path / "none.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return replace(bare, config_path=path)


def config_of(pair: Pair, name: str) -> ClusterConfig:
    return load_config(pair.config_path).cluster(name)


def create(pair: Pair, topic: str, *more: str) -> tuple[int, str]:
    words = ["--source", "east", "--destination", "west", "--topics", topic, "--yes", "--config", str(pair.config_path)]
    done = mirrorbook("mirror", "create", "first", *words, *more)
    return done.returncode, done.stdout + done.stderr


def ours(cluster: SandboxCluster) -> set[str]:
    return {t for t in admin_client(cluster).list_topics(timeout=TIMEOUT_S).topics if t.startswith("__mirrorbook")}


def said_by(config: ClusterConfig, *named: tuple[Resource, str]) -> BrokerAuthorization:
    with ClusterClient(config) as client:
        [answer] = probe_brokers(
            client, (ALLOW_EVERYONE_SETTING, SUPER_USERS_SETTING, AUTHORIZER_SETTING), named
        ).values()
    assert isinstance(answer, BrokerAuthorization), answer
    return answer


def test_no_mirror_is_created_where_a_first_acl_would_shut_others_out(bare: Pair) -> None:
    topic = new_topic(bare.east)
    checked = mirrorbook("cluster", "check", "west", "--config", str(bare.config_path))
    assert checked.returncode == 1, checked
    assert "a first ACL shuts others out: likely" in checked.stdout
    assert f"has set {ALLOW_EVERYONE_SETTING} and hides the value" in checked.stderr
    for dry in ((), ("--dry-run",)):
        code, said = create(bare, topic, *dry)
        assert code == 3, said
        assert "cluster east: a first ACL probably shuts out" in said
        assert "cluster west: a first ACL probably shuts out" in said
        assert f"then set {ALLOW_EVERYONE_SETTING}=false" in said
        assert "`authorizer: none`" in said
    assert (rights_of(bare.east), rights_of(bare.west)) == (frozenset(), frozenset())
    assert (ours(bare.east), ours(bare.west)) == (set(), set())


def test_an_acl_that_concerns_nobody_tells_everybody_from_super_users(bare: Pair) -> None:
    west = config_of(bare, "west")
    assert check_shut_out(west).shuts_out is FirstAclEffect.LIKELY
    assert check_shut_out(admin_config(bare.west)).shuts_out is FirstAclEffect.LIKELY
    grant(bare.west, "nobody", ResourceType.GROUP, SUPER_USER_CHECK_GROUP, [AclOperation.DESCRIBE])
    wait_until(
        lambda: check_shut_out(west).shuts_out is FirstAclEffect.YES,
        timeout_s=TIMEOUT_S,
        why="it is told from a super user",
    )
    found = json.loads(mirrorbook("cluster", "check", "west", "--config", str(bare.config_path), "--json").stdout)
    assert found["first_acl"]["shuts_out"] == "yes"
    assert "is no super user" in found["first_acl"]["reason"]
    assert [line for line in found["problems"] if "a first ACL shuts out everybody else" in line]
    as_admin = check_shut_out(admin_config(bare.west))
    assert as_admin.shuts_out is FirstAclEffect.UNKNOWN
    assert "User:admin is a super user there" in as_admin.reason
    found_by = {ClusterName("as admin"): as_admin, ClusterName("west"): check_shut_out(west)}
    assert len(format_unknown_shut_out(found_by)) == 1


def test_a_first_acl_does_shut_others_out_there(bare: Pair) -> None:
    """What all of this is about, and that brokers answer by rights before they answer by what there is."""
    west, topic = config_of(bare, "west"), new_topic(bare.west)
    named = {(Resource.TOPIC, topic), (Resource.TOPIC, "no-such"), (Resource.GROUP, "no-such")}
    named |= {(Resource.TRANSACTIONAL_ID, "no-such"), (Resource.CLUSTER, "kafka-cluster")}
    before = said_by(west, *named)
    assert before.can_describe == dict.fromkeys(named, True)
    assert before.settings is not None
    assert (before.settings[ALLOW_EVERYONE_SETTING], before.settings[SUPER_USERS_SETTING]) == (None, None)
    assert before.settings[AUTHORIZER_SETTING] in KAFKA_AUTHORIZER_CLASSES
    for kind, name in (
        (ResourceType.TOPIC, topic),
        (ResourceType.TOPIC, "no-such"),
        (ResourceType.GROUP, "no-such"),
        (ResourceType.TRANSACTIONAL_ID, "no-such"),
        (ResourceType.BROKER, "kafka-cluster"),
    ):
        grant(bare.west, "nobody", kind, name, [AclOperation.DESCRIBE])
    wait_until(
        lambda: said_by(west, *named).can_describe == dict.fromkeys(named, False),
        timeout_s=TIMEOUT_S,
        why="it is shut out",
    )
    denied = said_by(west, *named)
    assert denied.settings is None  # DESCRIBE_CONFIGS on the cluster went with the rest


def test_an_acl_for_everybody_on_everything_shuts_nobody_out(bare: Pair) -> None:
    """The documented first step away from that setting where nothing has an ACL yet, by Kafka's own tool."""
    west, topic = config_of(bare, "west"), new_topic(bare.west)
    tool = ["org.apache.kafka.tools.AclCommand", "--command-config", str(tool_properties(bare.west, bare.sandbox.dir))]
    done = bare.west.tool(*tool, "--bootstrap-server", bare.west.bootstrap, "--add", *EVERYBODY)
    assert done.returncode == 0, done.stderr
    wait_until(lambda: rights_of(bare.west), timeout_s=TIMEOUT_S, why="the broker shows it")
    assert check_shut_out(west).shuts_out is FirstAclEffect.NO
    named = {(Resource.TOPIC, topic), (Resource.GROUP, "g"), (Resource.TRANSACTIONAL_ID, "x")}
    named |= {(Resource.CLUSTER, "kafka-cluster")}
    assert said_by(west, *named).can_describe == dict.fromkeys(named, True)


def test_a_mirror_that_was_created_before_is_not_failed_over_where_its_fence_would_shut_readers_out(
    open_pair: Pair, tmp_path: Path
) -> None:
    """Somebody has removed the ACLs on `*` since."""
    topic = new_topic(open_pair.east)
    produce(open_pair.east, topic, 5)
    mirrored = new_mirror(open_pair, tmp_path, topic)
    mirrored.copy()
    assert mirrored.failover.decide().reasons == ()
    before = rights_of(open_pair.east)
    try:
        restore_rights(open_pair.east, frozenset(a for a in before if a.resource is not Resource.TOPIC))
        found = mirrored.failover.decide().reasons
        said = mirrorbook("failover", "run", mirrored.name, "--yes", "--config", str(open_pair.config_path))
        left = rights_of(open_pair.east)
    finally:
        restore_rights(open_pair.east, before)
    assert len(found) == 1
    assert found[0].code == "fence_too_wide"
    assert (found[0].values["topics"], found[0].values["shuts_out"]) == ((topic,), "yes")
    assert (said.returncode, "the fence would shut out more than writers" in said.stderr) == (3, True), said
    assert not any(a.name == topic for a in left), "nothing is fenced"
    assert mirrored.failover.decide(RunMode.UNPLANNED).reasons == ()


def test_where_everything_has_an_acl_mirrors_are_created_whatever_the_setting(open_pair: Pair) -> None:
    """With the rights of the documentation: they are on `*`, so that nobody lives on the default any more."""
    topic = new_topic(open_pair.east)
    assert check_shut_out(config_of(open_pair, "west")).shuts_out is FirstAclEffect.NO
    code, said = create(open_pair, topic)
    assert code == 0, said
    assert "warning" not in said


@pytest.mark.slow
def test_where_the_setting_is_false_mirrors_are_created(tmp_path: Path) -> None:
    with two_clusters(tmp_path, extra={ALLOW_EVERYONE_SETTING: "false"}) as pair:
        for cluster in (pair.east, pair.west):
            entries = rights_of(cluster)
            of_all = {a for a in entries if a.resource is Resource.TRANSACTIONAL_ID and a.name == "*"}
            assert of_all
            restore_rights(cluster, entries - of_all)
        west = config_of(pair, "west")
        found = check_shut_out(west)
        assert found.shuts_out is FirstAclEffect.NO
        assert "refuses User:mirror-control to TRANSACTIONAL_ID" in found.reason
        code, said = create(pair, new_topic(pair.east))
        assert code == 0, said
        only_super = admin_config(pair.west)  # is refused nothing, which proves nothing
        assert check_shut_out(only_super).shuts_out is FirstAclEffect.UNKNOWN
        with_data = replace(only_super, data=west.properties(Principal.DATA))
        assert check_shut_out(with_data).shuts_out is FirstAclEffect.NO


def test_where_the_setting_is_not_set_nobody_is_shut_out(pair: Pair) -> None:
    """Also for super users, and where our own rights are not on everything."""
    entries = rights_of(pair.west)
    try:
        restore_rights(pair.west, frozenset(a for a in entries if a.resource is not Resource.TRANSACTIONAL_ID))
        assert said_by(config_of(pair, "west")).settings is not None
        for config in (config_of(pair, "west"), admin_config(pair.west)):
            assert check_shut_out(config).shuts_out is FirstAclEffect.NO
    finally:
        restore_rights(pair.west, entries)


def used_by_all(cluster: SandboxCluster, topic: str) -> None:
    """Everybody writes, reads, and commits as a group of his own; the application in a transaction, too."""
    transactional = Producer({**cluster.client_config("app"), "transactional.id": f"tx-{secrets.token_hex(4)}"})
    transactional.init_transactions(TIMEOUT_S)
    transactional.begin_transaction()
    transactional.produce(topic, b"within", partition=0)
    transactional.commit_transaction(TIMEOUT_S)
    for user in ALL_USERS:
        produce(cluster, topic, 1, user=user)
        end = len(read_all(cluster, topic, user=user))
        consumer = Consumer({**cluster.client_config(user), "group.id": f"g-{user}-{secrets.token_hex(4)}"})
        try:
            consumer.commit(offsets=[TopicPartition(topic, 0, end)], asynchronous=False)
            assert consumer.committed([TopicPartition(topic, 0)], timeout=TIMEOUT_S)[0].offset == end
        finally:
            consumer.close()


def as_ever(pair: Pair, topic: str, elsewhere: Mapping[str, str], *, active: SandboxCluster) -> None:
    """No ACL anywhere; all use the mirrored topic where it is active, and one of no mirror's on either side.

    On the passive side all may read it. Nothing keeps them from writing there, and what they wrote would be a tail.
    """
    assert (rights_of(pair.east), rights_of(pair.west)) == (frozenset(), frozenset())
    used_by_all(active, topic)
    for cluster in (pair.east, pair.west):
        used_by_all(cluster, elsewhere[cluster.name])
        there = read_all(cluster, topic)
        assert there
        assert [read_all(cluster, topic, user=user) == there for user in ALL_USERS] == [True] * len(ALL_USERS)


def mirror_of_all(pair: Pair, folder: Path) -> tuple[Mirrored, Mapping[str, str]]:
    """Made, copied and synced; and topics that no mirror has, by cluster."""
    topic, elsewhere = new_topic(pair.east), {cluster.name: new_topic(cluster) for cluster in (pair.east, pair.west)}
    used_by_all(pair.east, topic)
    mirrored = new_mirror(pair, folder, topic, groups=("g-.*",))
    mirrored.copy()
    rows = mirror_commands.run_sync(mirrored.link).rows
    assert [row.action for row in rows if row.part is SyncCategory.ACLS] == [SyncAction.SKIP, SyncAction.SKIP]
    as_ever(pair, topic, elsewhere, active=pair.east)
    return mirrored, elsewhere


def unfenced(told: Sequence[Finding], source: str, destination: str) -> bool:
    """Whether a plan says that neither side can be closed. Nobody says that these have no authorizer: they have."""
    why = AuthorizerKind.NONE.no_acl_reason
    without_acls = [message for message in told if message.code in ("source_without_acls", "destination_without_acls")]
    assert {message.values["authorizer"] for message in without_acls} == {AuthorizerKind.NONE}
    assert all(why in str(message) for message in without_acls)
    return {(message.code, message.subject) for message in without_acls} == {
        ("source_without_acls", source),
        ("destination_without_acls", destination),
    }


def test_a_plan_says_what_cannot_be_fenced_and_everybody_goes_on(left_open: Pair, tmp_path: Path) -> None:
    mirrored, _ = mirror_of_all(left_open, tmp_path)
    checked = check_cluster(config_of(left_open, "west"))
    assert {right.verdict for right in checked.rights} == {RightStatus.OK}
    assert {right.detail for right in checked.rights} == {"not looked at: it gets no ACLs (`authorizer: none`)"}
    assert checked.first_acl is not None
    assert "no authorizer" not in checked.first_acl.text
    plan = mirrored.failover.decide(RunMode.PLANNED).plan
    assert unfenced(plan.warnings, "east", "west"), plan.warnings
    assert any("east cannot be fenced by Mirrorbook" in step.action for step in plan.steps)


@pytest.mark.slow
def test_everybody_can_do_what_he_could_there_and_at_home_again(left_open: Pair, tmp_path: Path) -> None:
    mirrored, elsewhere = mirror_of_all(left_open, tmp_path)
    east, west, [topic] = left_open.east, left_open.west, mirrored.link.mirror.topics
    mirrored.copy()
    run = begin(mirrored.failover, RunMode.PLANNED)
    assert mirrored.failover.drive(run.id).state is RunState.DONE
    as_ever(left_open, topic, elsewhere, active=west)
    assert check_fence(mirrored.link).alarms == ()
    assert mirrored.state.pending_fences[mirrored.name].trouble == Finding(
        "fence_unavailable", "east", authorizer="none", partitions=()
    )

    failback = failback_of(mirrored)
    plan = failback.plan()
    assert "old_source_unfenceable" in [message.code for message in plan.warnings], plan.warnings
    home = failback.begin(plan.hash)
    assert failback.drive(home.id).state is RunState.RUNNING
    as_ever(left_open, topic, elsewhere, active=west)
    told = failback.make_reverse_failover().decide(RunMode.PLANNED).plan.warnings
    assert unfenced(told, "west", "east"), told
    go_home(failback, home.id)
    as_ever(left_open, topic, elsewhere, active=east)
    mirrored.copy()
    assert_parity(mirrored)
