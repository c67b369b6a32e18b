"""Ways into a cluster: SASL over TLS, client certificates, PLAIN, none; copied through each, and refused in words."""

from __future__ import annotations

import itertools
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import yaml
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.api_versions.v0.response import ApiVersionsResponse

from mirror_core.copy.background import ConnectionOpener
from mirror_core.copy.fetch_links import FetchLinks
from mirror_core.dataplane.counters import RetriedWork
from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.epoch_results import raise_if_failed
from mirror_core.dataplane.heartbeat_writer import HeartbeatOutcome
from mirror_core.dataplane.task_runner import LocalRunner
from mirror_core.kafka.acl_requests import (
    AuthorizerOff,
    BrokerAcls,
    create_acls,
    delete_acls,
    describe_acls,
    wait_until_acls_absent,
    wait_until_acls_present,
)
from mirror_core.kafka.client import ClusterClient, ClusterMetadata
from mirror_core.kafka.config import ClusterConfig, Config, Principal, load_config
from mirror_core.kafka.fetch_link import FetchLink
from mirror_core.kafka.produce_link import InflightWindow
from mirror_core.kafka.tls import get_tls_context
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.mirror_creation import create_mirror
from mirror_core.mirrors.preflight import check_cluster
from mirror_core.model.acl import Acl, Operation, Permission, Resource
from mirror_core.model.errors import (
    BadRequest,
    ConnectionRejected,
    MirrorError,
    MissingPermission,
    Refused,
    Unreachable,
)
from mirror_core.model.names import ClusterName, MirrorName, Partition
from mirror_core.model.run import RunMode, RunState, StepEvidence
from mirror_core.rights.acl_rules import build_denial
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.run_services import local_services
from mirror_core.state.mirror_link import MirrorLink, find_mirror_link
from mirror_core.state.writer import StateWriter, make_control_id
from mirror_core.sync.acl_sync import demote_topics
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.credentials import ADMIN
from mirrorbook_tools.sandbox.ports import HOST, choose_ports
from tests.cluster.secure import NAME, SESSION_MS, Authority, Secure, issue_certificates, secure_cluster
from tests.support.addresses import has_ipv6
from tests.support.checked_threads import beside
from tests.support.cluster_admin import as_admin
from tests.support.failover_runs import commit
from tests.support.group_commits import fetch_offsets
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, new_topic, produce, read_all
from tests.support.mirrored_topics import replicate
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until
from tests.support.wan_relay import Weather, relay

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    with secure_cluster(tmp_path_factory.mktemp("secure") / "cluster") as started:
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        password = started.cluster.passwords[ADMIN].encode()
        admin = admin_client(started.cluster)
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion(ADMIN, credential, password)])[ADMIN].result(
            TIMEOUT_S
        )
        wait_until(
            lambda: refusal(started.properties("tls")) is None, timeout_s=TIMEOUT_S, why="SCRAM-SHA-256 is in force"
        )
        yield started


def refusal(properties: dict[str, str]) -> MirrorError | None:
    """Why this client gets no answer; None when it gets one."""
    with ClusterClient(ClusterConfig(ClusterName(NAME), properties, properties), timeout_s=5.0) as client:
        try:
            assert client.metadata(()).brokers
        except MirrorError as error:
            return error
        return None


@dataclass(frozen=True, slots=True)
class Way:
    """A topic on one cluster, to be copied to the other."""

    config: Config
    source: SandboxCluster
    destination: SandboxCluster

    def mirror(self, topic: str, groups: tuple[str, ...] = ("none",)) -> MirrorLink:
        name = MirrorName("m-" + secrets.token_hex(4))
        ends = {"source": self.source.name, "destination": self.destination.name}
        create_mirror(self.config, name, topics=[topic], groups=groups, **ends)  # type: ignore[arg-type]
        mirror_commands.start_mirror(find_mirror_link(self.config, name)[0])
        return find_mirror_link(self.config, name)[0]

    def copy(self, topic: str) -> None:
        options = ReplicationOptions(until_caught_up=True)
        summary = Replication(
            self.mirror(topic), LocalRunner, options, stop=threading.Event(), report_line=lambda line: None
        ).run()
        assert (summary.caught_up, summary.failed) == (True, {})


def beats_of(driver: Replication) -> int:
    """Seconds in which all heartbeats were acknowledged."""
    return driver.counters.snapshot().heartbeats.get(HeartbeatOutcome.ACKNOWLEDGED, 0)


def holds(way: Way, topic: str, records: int) -> bool:
    """Whether the topic has come to the destination, with as many records."""
    with ClusterClient(way.config.cluster(way.destination.name)) as client:
        there = topic in client.metadata([topic]).topics
    return there and len(read_all(way.destination, topic)) == records


def is_committed(link: MirrorLink, group: str, topic: str, offset: int) -> bool:
    """Whether a group stands there on the destination."""
    with ClusterClient(link.destination) as client:
        found = fetch_offsets(client, group).committed.get(Partition(topic, 0))
    return found is not None and found.offset == offset


def way_through(pair: Pair, secure: Secure, folder: Path, listener: str, direction: str) -> Way:
    """From or to the cluster that listens in many ways, through one of its listeners."""
    document = yaml.safe_load(pair.config_path.read_text(encoding="utf-8"))
    document["clusters"][NAME] = secure.properties(listener)
    path = folder / "mirrorbook.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    source, destination = (secure.cluster, pair.west) if direction == "from" else (pair.east, secure.cluster)
    return Way(load_config(path), source, destination)


@pytest.mark.parametrize(
    ("direction", "listener"),
    [
        *(("from", listener) for listener in ("tls", "locked")),
        *(("to", listener) for listener in ("mutual", "plain")),
        *(pytest.param("from", listener, marks=pytest.mark.slow) for listener in ("mutual", "plain", "open")),
        *(pytest.param("to", listener, marks=pytest.mark.slow) for listener in ("tls", "locked", "open")),
    ],
)
def test_a_topic_is_copied_through(pair: Pair, secure: Secure, tmp_path: Path, listener: str, direction: str) -> None:
    way = way_through(pair, secure, tmp_path, listener, direction)
    topic = new_topic(way.source, partitions=3)
    for partition in range(3):
        # Batches of all sizes, some larger than a TLS record (16 KiB) and than our first buffer.
        produce(way.source, topic, 3_000, partition=partition, batch_num_messages=("7", "300", "10000")[partition])
    way.copy(topic)
    assert read_all(way.source, topic) == read_all(way.destination, topic) != []


@pytest.mark.parametrize(
    ("direction", "listener"),
    [("from", "tls"), ("to", "plain"), pytest.param("from", "plain", marks=pytest.mark.slow)],
)
def test_sessions_that_brokers_end_are_renewed_without_a_fault(
    pair: Pair, secure: Secure, tmp_path: Path, caplog: pytest.LogCaptureFixture, listener: str, direction: str
) -> None:
    """KIP-368. Copying, heartbeats, looks at the source and groups go on, on connections that outlive many sessions."""
    way = way_through(pair, secure, tmp_path, listener, direction)
    topic, group = new_topic(way.source, partitions=2), f"g-{secrets.token_hex(4)}"
    link = way.mirror(topic, groups=(group,))
    began, stop = time.monotonic(), threading.Event()
    driver = Replication(link, LocalRunner, ReplicationOptions(epoch_s=20), stop=stop, report_line=lambda line: None)
    with caplog.at_level("INFO", "mirror_core"), beside(driver.run, stop.set, name="data plane"):
        for number in itertools.count(1):
            produce(way.source, topic, 50, partition=number % 2)
            produce(way.source, topic, 3)
            commit(way.source, group, topic, 3 * number)
            wait_until(partial(is_committed, link, group, topic, 3 * number), timeout_s=TIMEOUT_S, why="it is followed")
            if number > 6 and time.monotonic() - began > 5 * SESSION_MS / 1000:
                break
        beaten = driver.counters.snapshot()
    assert read_all(way.source, topic) == read_all(way.destination, topic)
    assert [r.getMessage() for r in caplog.records if "closed" in r.getMessage() or "lost" in r.getMessage()] == []
    assert beaten.retries.get(RetriedWork.GROUPS, 0) == beaten.retries.get(RetriedWork.TASK, 0) == 0
    assert beaten.heartbeats[HeartbeatOutcome.ACKNOWLEDGED] > 6


def test_a_data_plane_goes_on_when_all_certificates_are_replaced_under_it(
    pair: Pair, secure: Secure, tmp_path: Path
) -> None:
    """The broker takes the old ones no more. Heartbeats end for good otherwise: librdkafka reads files once."""
    way = way_through(pair, secure, tmp_path, "mutual", "from")
    topic, stop = new_topic(way.source), threading.Event()
    produce(way.source, topic, 20)
    link = way.mirror(topic)
    driver = Replication(link, LocalRunner, ReplicationOptions(epoch_s=5), stop=stop, report_line=lambda line: None)
    with beside(driver.run, stop.set, name="data plane"):
        wait_until(lambda: beats_of(driver) > 2, timeout_s=TIMEOUT_S, why="it beats")
        secure.cluster.terminate()
        issue_certificates(secure.folder)
        secure.cluster.start()
        before = beats_of(driver)
        wait_until(lambda: beats_of(driver) > before + 2, timeout_s=TIMEOUT_S, why="it beats with the new certificate")
        produce(way.source, topic, 20)
        wait_until(partial(holds, way, topic, 40), timeout_s=TIMEOUT_S, why="it copies with the new certificate")
    assert read_all(way.source, topic) == read_all(way.destination, topic)


@pytest.mark.parametrize("half", ["client.key", "client.pem"])
def test_a_certificate_and_a_key_that_do_not_match_yet_end_no_data_plane(
    pair: Pair, secure: Secure, tmp_path: Path, half: str, caplog: pytest.LogCaptureFixture
) -> None:
    way = way_through(pair, secure, tmp_path, "mutual", "from")
    topic, stop = new_topic(way.source), threading.Event()
    produce(way.source, topic, 20)
    driver = Replication(
        way.mirror(topic), LocalRunner, ReplicationOptions(epoch_s=3), stop=stop, report_line=lambda line: None
    )
    whole = {name: (secure.folder / name).read_bytes() for name in ("client.key", "client.pem")}
    with caplog.at_level("WARNING", "mirror_core"), beside(driver.run, stop.set, name="data plane"):
        wait_until(partial(holds, way, topic, 20), timeout_s=TIMEOUT_S, why="it copies")
        beaten = beats_of(driver)
        try:
            (secure.folder / half).write_bytes((secure.folder / half.replace("client", "named")).read_bytes())
            wait_until(lambda: "connects as before" in caplog.text, timeout_s=TIMEOUT_S, why="it says so")
            produce(way.source, topic, 20)
            wait_until(partial(holds, way, topic, 40), timeout_s=TIMEOUT_S, why="it goes on")
        finally:
            for name, text in whole.items():
                (secure.folder / name).write_bytes(text)
        wait_until(lambda: beats_of(driver) > beaten, timeout_s=TIMEOUT_S, why="it beats")
    assert read_all(way.source, topic) == read_all(way.destination, topic)


@pytest.mark.parametrize("listener", ["open", "mutual", "plain", "tls"])
def test_the_round_trip_is_the_brokers_where_a_proxy_ends_tcp(secure: Secure, listener: str) -> None:
    """A sidecar, or a load balancer: it takes a connection at once, and the broker behind it is 80 ms away."""
    (near,) = choose_ports(1)
    round_trip_s, properties = 0.08, secure.properties(listener)
    direct = properties["bootstrap.servers"]
    config = ClusterConfig(ClusterName(NAME), properties, properties)
    with relay({near: int(direct.rpartition(":")[2])}) as link, ClusterClient(config) as client:
        link.becomes([near], Weather(delay_ms=1000 * round_trip_s / 2))
        ahead = ConnectionOpener(client)
        ahead.set_brokers(ClusterMetadata("", 1, {1: (HOST, near)}, {}, frozenset()))
        with closing(ahead), closing(ahead.connect(1)) as connection:
            assert connection.round_trip_s >= round_trip_s
            window = InflightWindow(connection.round_trip_s, 64 << 20)
            window.record_ack(100_000_000, 1.0)  # within a second, from 0.0 on
            assert window.window_bytes >= 4 * round_trip_s * 100_000_000
            assert FetchLinks(connection, lambda connection, far: cast("FetchLink", None)).is_far


def test_a_certificate_of_an_unknown_authority_is_refused_with_the_remedy(secure: Secure) -> None:
    error = refusal({**secure.properties("tls"), "ssl.ca.location": str(secure.folder / "other-ca.pem")})
    assert isinstance(error, BadRequest)
    where = f"cluster {NAME}, broker 127.0.0.1:{secure.tls}: certificate refused: "
    assert str(error).startswith(where)
    assert str(error).endswith("; check ssl.ca.location")


def librdkafka_refusal(properties: dict[str, str]) -> str:
    """Why a client of librdkafka's gets no answer; empty when it gets one."""
    said = list[str]()
    admin = AdminClient({**properties}, error_cb=lambda error: said.append(str(error)))
    with suppress(KafkaException):
        admin.list_topics(timeout=5.0)
        return ""
    admin.poll(0)
    return " ".join(said)


def test_a_revoked_certificate_is_refused_by_both_clients(secure: Secure) -> None:
    tls = secure.properties("tls")
    good, bad = ({**tls, "ssl.crl.location": str(secure.folder / name)} for name in ("none.crl", "broker.crl"))
    assert refusal(good) is None
    assert librdkafka_refusal(good) == ""
    error = refusal(bad)
    assert isinstance(error, BadRequest)
    assert str(error).endswith("certificate refused: certificate revoked; check ssl.crl.location")
    assert "certificate verify failed" in librdkafka_refusal(bad)


def test_a_certificate_whose_authority_has_no_list_of_revoked_ones_is_refused(secure: Secure) -> None:
    other, crl = Authority("a third one"), secure.folder / "third.crl"
    other.revoke(crl)
    error = refusal({**secure.properties("tls"), "ssl.crl.location": str(crl)})
    assert isinstance(error, BadRequest)
    assert str(error).endswith("; check ssl.crl.location")


@pytest.mark.parametrize(("file", "trusted"), [("ca.pem", True), ("other-ca.pem", False)])
def test_the_authorities_in_the_configuration_are_the_only_ones(secure: Secure, file: str, trusted: bool) -> None:
    properties = {**secure.properties("tls"), "ssl.ca.pem": (secure.folder / file).read_text(encoding="utf-8")}
    del properties["ssl.ca.location"]
    assert (refusal(properties) is None) is trusted
    assert (librdkafka_refusal(properties) == "") is trusted
    assert len(get_tls_context(NAME, properties).get_ca_certs()) == 1, "and none of the system's"


def test_a_certificate_for_another_host_is_refused_with_the_remedy(secure: Secure) -> None:
    there = {"bootstrap.servers": f"localhost:{secure.tls}"}
    error = refusal({**secure.properties("tls"), **there})
    assert isinstance(error, BadRequest)
    assert str(error) == (format_sentence("certificate_of_another_hostname", NAME, secure.tls, "localhost"))
    assert refusal({**secure.properties("tls"), **there, "ssl.endpoint.identification.algorithm": "none"}) is None, (
        "who wants no check of names gets none"
    )


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_a_broker_is_reached_by_an_ipv6_address_that_its_certificate_holds(secure: Secure) -> None:
    properties, (own, near) = secure.properties("six"), secure.six
    with relay({near: own}, "::1"):
        with ClusterClient(ClusterConfig(ClusterName(NAME), properties, properties)) as client:
            assert list(client.metadata(()).brokers.values()) == [("::1", near)]
            assert client.call(ApiVersionsRequest(), ApiVersionsResponse, 1).api_keys, "at the address that it names"
        error = refusal({**properties, "ssl.ca.location": str(secure.folder / "other-ca.pem")})
    assert isinstance(error, BadRequest)
    assert str(error).startswith(f"cluster {NAME}, broker [::1]:{near}: certificate refused: ")


def test_without_a_client_certificate_the_broker_refuses_and_we_say_what_it_wants(secure: Secure) -> None:
    properties = secure.properties("mutual")
    del properties["ssl.certificate.location"], properties["ssl.key.location"]
    error = refusal(properties)
    assert isinstance(error, ConnectionRejected), (
        "taken for one that is silent, it could be given up while it takes writes"
    )
    assert f"cluster {NAME}: no broker answers (broker 127.0.0.1:{secure.mutual}: " in str(error)
    assert "; if it wants client certificates, set ssl.certificate.location and ssl.key.location" in str(error)


@pytest.mark.parametrize("key", ["ssl.ca.location", "ssl.certificate.location", "ssl.key.location"])
def test_a_missing_file_is_named(secure: Secure, key: str) -> None:
    error = refusal({**secure.properties("mutual"), key: "/no/such/file.pem"})
    assert isinstance(error, BadRequest)
    assert str(error) == f"cluster {NAME}: {key}: /no/such/file.pem cannot be read: No such file or directory"


def test_a_file_that_is_no_certificate_is_refused(secure: Secure) -> None:
    key = str(secure.folder / "client.key")
    error = refusal({**secure.properties("mutual"), "ssl.certificate.location": key})
    assert isinstance(error, BadRequest)
    assert str(error).startswith(f"cluster {NAME}: TLS files cannot be used: ")


@pytest.mark.parametrize("password", ["not-the-password", None])
def test_a_key_that_does_not_open_is_refused_and_no_password_shown(
    secure: Secure, tmp_path: Path, password: str | None
) -> None:
    properties = secure.properties("locked")
    properties["ssl.key.location"] = str(
        shutil.copy(properties["ssl.key.location"], tmp_path / "locked.key")
    )  # never opened before
    del properties["ssl.key.password"]
    error = refusal(properties | ({"ssl.key.password": password} if password else {}))
    assert isinstance(error, BadRequest)
    assert str(error).startswith(f"cluster {NAME}: TLS files cannot be used: ")
    assert str(error).endswith(" and ssl.key.password")
    assert "not-the-password" not in str(error)


def test_no_tls_where_the_broker_expects_it(secure: Secure) -> None:
    error = refusal({**secure.properties("tls"), "security.protocol": "SASL_PLAINTEXT"})
    assert isinstance(error, ConnectionRejected)
    assert "TLS is expected there" in str(error)


def test_tls_where_the_broker_does_not_expect_it(secure: Secure) -> None:
    error = refusal({**secure.properties("plain"), "security.protocol": "SASL_SSL"})
    assert isinstance(error, Unreachable)
    assert "is TLS spoken there?" in str(error)


@pytest.mark.parametrize("listener", ["tls", "plain"])
def test_a_wrong_password_is_said_and_not_shown(secure: Secure, listener: str) -> None:
    error = refusal({**secure.properties(listener), "sasl.password": "not-the-password"})
    assert isinstance(error, BadRequest)
    assert "authentication as 'admin' failed: check sasl.username and sasl.password" in str(error)
    assert "not-the-password" not in str(error)


def test_rights_are_granted_to_a_certificate_under_the_name_that_we_read_in_it(secure: Secure) -> None:
    properties = secure.properties("named")
    config = ClusterConfig(ClusterName(NAME), properties, properties)
    with ClusterClient(config) as client, pytest.raises(MissingPermission):
        describe_acls(client)
    name = f"User:{config.user()}"
    right = Acl(resource=Resource.CLUSTER, name="kafka-cluster", principal=name, operation=Operation.DESCRIBE)
    with as_admin(secure.cluster) as admin, ClusterClient(config) as client:
        anybody = replace(right, principal="User:*")
        create_acls(admin, [anybody])
        wait_until_acls_present(admin, [anybody])
        assert [p for p in check_cluster(config).problems if f"no access right there names {name}, the subject of" in p]
        delete_acls(admin, [anybody])
        wait_until_acls_absent(admin, [anybody])
        create_acls(admin, [right])
        wait_until_acls_present(admin, [right])
        assert right in seen(describe_acls(client)), f"brokers do not call it {name}"
        assert check_cluster(config).problems == ()
        delete_acls(admin, [right])


@pytest.mark.slow
def test_copying_tasks_that_brokers_may_call_otherwise_are_not_counted_as_denied(
    pair: Pair, secure: Secure, tmp_path: Path
) -> None:
    """Where no access right names their certificate's subject: an unplanned failover waits until they cannot write."""
    document = yaml.safe_load(pair.config_path.read_text(encoding="utf-8"))
    document["clusters"][NAME] = {**secure.properties("mutual"), "data": secure.properties("named")}
    path = tmp_path / "mirrorbook.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    config, topic = load_config(path), new_topic(pair.east)
    produce(pair.east, topic, 10)
    name = MirrorName("m-" + secrets.token_hex(4))
    everything = Acl(resource=Resource.TOPIC, name="*", principal="User:*", operation=Operation.ALL)
    anybody = {everything, replace(everything, resource=Resource.CLUSTER, name="kafka-cluster")}
    data = f"User:{config.cluster(NAME).user(Principal.DATA)}"
    named = replace(everything, name=topic, principal=data, operation=Operation.READ)

    def settled() -> StepEvidence:
        failover = Failover(
            find_mirror_link(config, name)[0], local_services(path, evidence_dir=tmp_path), started_by="test"
        )
        run = failover.begin(failover.plan(RunMode.UNPLANNED).hash, RunMode.UNPLANNED)
        evidence = failover.run_step(run.id, "settle").evidence
        assert failover.abort(run.id).state is RunState.ABORTED
        return evidence

    with as_admin(secure.cluster) as admin:
        create_acls(admin, anybody)
        wait_until_acls_present(admin, anybody)
        create_mirror(config, name, topics=[topic], groups=["none"], source="east", destination=NAME)
        mirror_commands.start_mirror(find_mirror_link(config, name)[0])
        raise_if_failed(replicate(find_mirror_link(config, name)[0]))
        doubted = settled()
        assert doubted["copiers"] == "outwaited"
        assert f"no access right there names {data}" in str(doubted["copiers_in_doubt"])
        create_acls(admin, [named])
        wait_until_acls_present(admin, [named])
        assert settled()["copiers"] == "denied to write"
        delete_acls(admin, seen(describe_acls(admin)))


def test_a_demotion_does_not_deny_the_mirrors_own_certificate(pair: Pair, secure: Secure, tmp_path: Path) -> None:
    document = yaml.safe_load(pair.config_path.read_text(encoding="utf-8"))
    document["clusters"][NAME] = secure.properties("mutual")
    path = tmp_path / "mirrorbook.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    config, topic = load_config(path), new_topic(pair.east)
    name = MirrorName("m-" + secrets.token_hex(4))
    create_mirror(config, name, topics=[topic], groups=["none"], source="east", destination=NAME)
    link, _ = find_mirror_link(config, name)

    def granted(user: str) -> Acl:
        return Acl(resource=Resource.TOPIC, name="*", principal=f"User:{user}", operation=Operation.WRITE)

    with StateWriter(link.destination, make_control_id(name)) as writer, as_admin(secure.cluster) as admin:
        create_acls(admin, [granted("app")])
        wait_until_acls_present(admin, [granted("app")])
        with pytest.raises(Refused, match="no access right there names User:CN=mirror, the subject of the control"):
            demote_topics(link, writer, [topic], link.destination.name)
        create_acls(admin, [granted("CN=mirror")])
        wait_until_acls_present(admin, [granted("CN=mirror")])
        demote_topics(link, writer, [topic], link.destination.name)
        held = seen(describe_acls(admin))
        delete_acls(admin, held)
    assert {a for a in held if a.permission is Permission.DENY} == {build_denial(topic, "User:app")}


def seen(found: BrokerAcls | AuthorizerOff) -> frozenset[Acl]:
    assert isinstance(found, BrokerAcls)
    return found.entries
