"""`cluster check` against real brokers, with principals that may all, some, and nothing."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.kafka.authorization_probe import fetch_broker_setting
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Principal, load_config
from mirror_core.kafka.topics import describe_configs
from mirror_core.mirrors.broker_checks import AUTO_CREATE_KEY, UNCLEAN_ELECTION_KEY
from mirror_core.mirrors.mirror_creation import preview_copy
from mirror_core.mirrors.preflight import WITHOUT_HEARTBEATS, ClusterCheck, RightStatus, check_cluster, lacks_heartbeats
from mirror_core.model.acl import Operation, Permission
from mirror_core.model.errors import BadRequest, Unreachable
from mirror_core.model.mirror import GapFilling
from mirror_core.model.names import HEARTBEAT_TOPIC_PREFIX, ClusterName
from mirror_core.rights.required_acls import CLUSTER_NAME, ClusterRole
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.jars import ensure_jars
from tests.cluster.links import new_link
from tests.support.cluster_admin import tool_properties
from tests.support.gap_logs import transactional
from tests.support.kafka_clients import TIMEOUT_S, Pair, grant, new_topic
from tests.support.sentences import format_sentence
from tests.support.separate_cluster import in_place_of

pytestmark = pytest.mark.cluster


def as_users(pair: Pair, control: str, data: str) -> ClusterConfig:
    return ClusterConfig(ClusterName("west"), pair.west.client_config(control), pair.west.client_config(data))


def verdicts(found: ClusterCheck, role: ClusterRole, principal: str) -> dict[tuple[str, str], RightStatus]:
    rights = [r for r in found.rights if (r.role, r.principal, r.permission) == (role, principal, Permission.ALLOW)]
    return {(r.operation, r.resource): r.verdict for r in rights}


def test_the_sandboxes_principals_lack_nothing(pair: Pair) -> None:
    new_topic(pair.west)
    found = check_cluster(load_config(pair.config_path).cluster("west"))
    assert [(r.principal, r.operation, r.detail) for r in found.rights if r.verdict is not RightStatus.OK] == []
    assert (found.authorizer, found.problems, found.advice) == ("on", (), ())
    assert found.roles == (ClusterRole.SOURCE, ClusterRole.DESTINATION)
    assert found.features["metadata.version"] > 0


def test_a_super_user_lacks_nothing_though_no_acl_says_so(pair: Pair) -> None:
    new_topic(pair.west)
    assert {r.verdict for r in check_cluster(as_users(pair, "admin", "admin")).rights} == {RightStatus.OK}


def test_what_is_missing_is_said_as_a_line_that_grants_it(
    pair: Pair, new_user: Callable[[SandboxCluster], tuple[str, str]]
) -> None:
    topic = new_topic(pair.west)
    user, password = new_user(pair.west)
    login = {"sasl.username": user, "sasl.password": password}
    config = as_users(pair, "mirror-data", "app")
    config = replace(config, data={**config.properties(Principal.DATA), **login})
    found = check_cluster(config)
    assert found.roles == ()
    control = verdicts(found, ClusterRole.DESTINATION, "control")
    assert control["READ", "TOPIC"] is RightStatus.OK
    assert control["ALTER", "TOPIC"] is RightStatus.MISSING
    assert control["READ", "GROUP"] is RightStatus.OK
    assert control["ALTER", "CLUSTER"] is RightStatus.UNKNOWN  # without DESCRIBE nobody tells it
    nothing = verdicts(found, ClusterRole.DESTINATION, "data")
    assert nothing.pop(("CLUSTER_ACTION", "CLUSTER")) is RightStatus.SPARED  # it said so itself; mirrors do without
    assert nothing.pop(("READ", "GROUP")) is RightStatus.SPARED  # the control principal commits, then
    assert set(nothing.values()) == {RightStatus.UNKNOWN}
    lines = [r.command for r in found.rights if r.verdict is RightStatus.MISSING and r.operation == "ALTER"]
    assert lines == [
        f"kafka-acls.sh --bootstrap-server {pair.west.bootstrap} --add --allow-principal User:mirror-data "
        "--operation Alter --topic '*'"
    ]
    grant(pair.west, user, ResourceType.TOPIC, topic, [AclOperation.READ])
    partly = check_cluster(replace(as_users(pair, "mirror-control", "app"), data=config.data))
    data = verdicts(partly, ClusterRole.DESTINATION, "data")
    assert data["READ", "TOPIC"] is RightStatus.OK  # on the only topic that it may see
    assert data["WRITE", "TOPIC"] is RightStatus.MISSING
    assert data["CLUSTER_ACTION", "CLUSTER"] is RightStatus.SPARED


def test_the_right_to_heartbeats_can_be_done_without_and_its_line_grants_it(
    pair: Pair, new_user: Callable[[SandboxCluster], tuple[str, str]]
) -> None:
    user, password = new_user(pair.west)
    grant(pair.west, user, ResourceType.BROKER, CLUSTER_NAME, [AclOperation.DESCRIBE])
    config = as_users(pair, "app", "mirror-data")
    login = {"sasl.username": user, "sasl.password": password}
    config = replace(config, control={**config.properties(Principal.CONTROL), **login})
    lacking = [r for r in check_cluster(config).rights if r.detail == WITHOUT_HEARTBEATS]
    assert {(r.role, r.operation, r.verdict) for r in lacking} == {
        (ClusterRole.SOURCE, Operation.CREATE, RightStatus.SPARED),
        (ClusterRole.SOURCE, Operation.WRITE, RightStatus.SPARED),
    }
    assert all(f"{HEARTBEAT_TOPIC_PREFIX} --resource-pattern-type prefixed" in r.command for r in lacking)
    assert lacks_heartbeats(config)
    grant(
        pair.west,
        user,
        ResourceType.TOPIC,
        HEARTBEAT_TOPIC_PREFIX,
        [AclOperation.CREATE, AclOperation.WRITE],
        prefixed=True,
    )
    assert not lacks_heartbeats(config)


def test_the_proposed_lines_grant_what_was_missing(pair: Pair, tmp_path: Path) -> None:
    """Kafka's own tool takes them, and the next check finds nothing to say about that right."""
    new_topic(pair.west)
    config = as_users(pair, "mirror-control", "app")
    line = next(r for r in check_cluster(config).rights if r.operation == "CLUSTER_ACTION").command
    words = shlex.split(line)[1:]
    tool = ["org.apache.kafka.tools.AclCommand", "--command-config", str(tool_properties(pair.west, tmp_path))]
    try:
        done = pair.west.tool(*tool, *words)
        assert done.returncode == 0, done.stderr
        assert (
            verdicts(check_cluster(config), ClusterRole.DESTINATION, "data")["CLUSTER_ACTION", "CLUSTER"]
            is RightStatus.OK
        )
    finally:
        pair.west.tool(*tool, "--force", *(word.replace("--add", "--remove") for word in words))


def test_checking_leaves_nothing_behind(pair: Pair) -> None:
    config = load_config(pair.config_path).cluster("west")
    with ClusterClient(config) as client:
        before = client.metadata().topics.keys()
        check_cluster(config)
        assert client.metadata().topics.keys() == before


def test_a_brokers_setting_is_static_only_when_it_is_in_its_file(pair: Pair) -> None:
    with ClusterClient(load_config(pair.config_path).cluster("west")) as client:
        assert fetch_broker_setting(client, 1, "producer.id.expiration.ms") == ("2147483647", True)
        assert fetch_broker_setting(client, 1, "log.retention.ms") in (("", False), None)
        assert fetch_broker_setting(client, 1, "no.such.setting") is None


def test_a_wrong_password_and_a_dead_address_are_told_apart(pair: Pair) -> None:
    config = load_config(pair.config_path).cluster("west")
    wrong = replace(config, control={**config.properties(), "sasl.password": "wrong"})
    with pytest.raises(BadRequest, match=r"check sasl[.]username") as refusal:
        check_cluster(wrong)
    assert config.properties(Principal.CONTROL)["sasl.password"] not in str(refusal.value)
    dead = replace(config, control={**config.properties(), "bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(Unreachable, match=r"127[.]0[.]0[.]1:1"):
        check_cluster(dead)


def test_unknown_topics_have_no_configuration(pair: Pair) -> None:
    with ClusterClient(load_config(pair.config_path).cluster("west")) as client:
        assert describe_configs(client, ["no-such-topic"]) == {}


def test_what_settings_of_the_source_mean_for_a_mirror_is_said_before_it_is_created(pair: Pair) -> None:
    plain = new_topic(pair.east, cleanup_policy="compact")
    with_transactions = new_topic(pair.east, cleanup_policy="compact")
    unclean = new_topic(pair.east, unclean_leader_election_enable="true")
    producer = transactional(pair.east)
    producer.begin_transaction()
    producer.produce(with_transactions, b"value", b"key")
    producer.commit_transaction(TIMEOUT_S)
    link = new_link(pair, plain, with_transactions, unclean)
    said = preview_copy(link).lines
    (clients,) = [line for line in said if line.startswith("clients: ")]
    assert f"1 compacted topics without transactions ({plain})" in clients
    assert "--gaps hidden" in clients
    (elections,) = [line for line in said if line.startswith("unclean elections: ")]
    assert f"1 topics have unclean.leader.election.enable=true on east ({unclean})" in elections
    hidden = replace(link, mirror=replace(link.mirror, gaps=GapFilling.HIDDEN))
    assert not [line for line in preview_copy(hidden).lines if line.startswith("clients: ")]


def test_a_cluster_that_creates_topics_by_itself_and_elects_unclean_leaders_is_told_what_it_means(
    pair: Pair, tmp_path: Path
) -> None:
    settings = {UNCLEAN_ELECTION_KEY: "true", AUTO_CREATE_KEY: "true"}
    with in_place_of(pair, "west", tmp_path, ensure_jars(), settings) as other:
        config = load_config(other.config_path).cluster("west")
        advice = check_cluster(config).advice
        (created,) = [
            line for line in preview_copy(new_link(other, new_topic(other.east))).lines if AUTO_CREATE_KEY in line
        ]
    assert [line.split(" is true")[0] for line in advice] == [UNCLEAN_ELECTION_KEY, AUTO_CREATE_KEY]
    assert created == advice[1]
    assert created.startswith(format_sentence("broker_setting_true", AUTO_CREATE_KEY, 1, "west"))
