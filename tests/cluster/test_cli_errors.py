"""What the commands answer to mistakes: the words, the exit code, and that nothing is left behind."""

from __future__ import annotations

import secrets
import sys

import pytest
import yaml
from confluent_kafka.admin import (
    NewTopic,
)

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.model.errors import MirrorError
from mirror_core.runbook.planned_steps import PlannedSteps
from mirror_core.state.state_topic import read_state
from mirrorbook_tools.sandbox.ports import choose_ports
from tests.cluster.desk import MENDED, Desk, Said
from tests.support.broker_faults import killed
from tests.support.cli_process import mirrorbook
from tests.support.kafka_clients import TIMEOUT_S, admin_client, new_topic, produce, read_all
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

# -- the configuration ---------------------------------------------------------------------------------------------


def test_without_a_configuration_it_says_where_it_looks(desk: Desk) -> None:
    desk.config.unlink()
    assert desk.run("mirror", "list") == Said(
        2,
        "",
        "error: no configuration at mirrorbook.yaml: give --config FILE, set MIRRORBOOK_CONFIG, "
        "or write mirrorbook.yaml\n",
    )
    desk.config.mkdir()
    assert desk.run("mirror", "list") == Said(2, "", "error: mirrorbook.yaml is a folder: give the file in it\n")
    desk.config.rmdir()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("clusters:\n  east: {a: [b}\n", " line 2: not valid YAML"),
        ("east: {}\n", ": needs a mapping `clusters:` of name to client properties"),
        ("clusters: {east: {security.protocol: SSL}}\n", ": clusters.east: bootstrap.servers is missing"),
        (
            "clusters: {east: {bootstrap.servers: 'h:1', sasl.password: '${env:NOT_SET_ANYWHERE}'}}\n",
            ": clusters.east.sasl.password: environment variable NOT_SET_ANYWHERE is not set",
        ),
        (
            "clusters: {east: {bootstrap.servers: 'h:1', data: {sasl.password: '${file:/no/such/file:key}'}}}\n",
            ": clusters.east.data.sasl.password: /no/such/file cannot be read: No such file or directory",
        ),
        (
            "clusters: {east: {bootstrap.servers: 'h:1', data: {sasl.password: '${file:mirrorbook.yaml:key}'}}}\n",
            ": clusters.east.data.sasl.password: {folder}/mirrorbook.yaml has no key key",
        ),
    ],
)
def test_a_configuration_that_cannot_be_used_is_named_with_the_place(desk: Desk, text: str, words: str) -> None:
    desk.config.write_text(text, encoding="utf-8")
    expected = f"error: {desk.config}{words.format(folder=desk.folder)}\n"
    assert desk.run("mirror", "list") == Said(2, "", expected)


def test_a_property_that_no_client_knows_is_named(desk: Desk, unchanged: None) -> None:
    desk.change("east", no_such_thing="1")
    said = desk.run("mirror", "describe", "m-any")
    assert (said.code, said.out) == (2, "")
    assert "clusters.east.no.such.thing: there is no such property of Kafka's client" in said.err


@pytest.mark.parametrize("servers", ["localhost", "localhost:kafka", ":9092", "127.0.0.1:99999"])
def test_bootstrap_servers_that_are_no_addresses_are_named(desk: Desk, unchanged: None, servers: str) -> None:
    desk.change("east", bootstrap_servers=servers)
    refused = Said(2, "", f"error: {desk.config}: clusters.east.bootstrap.servers: {servers!r} is not host:port\n")
    assert (desk.create("--topics", "t-x"), desk.run("mirror", "list")) == (refused, refused)


@pytest.mark.parametrize("servers", ["::1:9092", "[::1:9092", "::1]:9092", "[]:9092"])
def test_an_ipv6_address_without_brackets_is_named(desk: Desk, unchanged: None, servers: str) -> None:
    """librdkafka would take 9092 for a part of the address."""
    desk.change("east", bootstrap_servers=servers)
    said = desk.create("--topics", "t-x")
    assert (said.code, said.out) == (2, "")
    assert said.err == (
        f"error: {desk.config}: clusters.east.bootstrap.servers: {servers!r}: write an IPv6 address in brackets, "
        "such as [::1]:9092\n"
    )


# -- clusters that do not let us in --------------------------------------------------------------------------------


def test_a_wrong_bootstrap_server_is_named_with_the_systems_reason(desk: Desk, unchanged: None) -> None:
    (port,) = choose_ports(1)
    desk.change("west", bootstrap_servers=f"127.0.0.1:{port}")
    words = format_sentence("no_broker_answered", "west", port)
    assert desk.create("--topics", "t-.*") == Said(1, "", f"error: {words}\n")
    assert desk.run("replicate", "m-x", "--runner", "local") == Said(
        4,
        "",
        format_sentence("mirror_not_known", "m-x", words),
    )


def test_a_wrong_password_is_said_and_not_shown(desk: Desk, unchanged: None) -> None:
    desk.change("east", sasl_password="not-the-password")
    words = (
        f"cluster east, broker {desk.pair.east.bootstrap}: authentication as 'mirror-control' failed: "
        "check sasl.username and sasl.password"
    )
    assert desk.create("--topics", "t-.*") == Said(2, "", f"error: {words}\n")
    assert desk.run("mirror", "describe", "m-x") == Said(
        2,
        "",
        format_sentence("mirror_not_known", "m-x", words),
    )
    # As a user runs it: another process, everything that it prints.
    whole = mirrorbook("mirror", "start", "m-x", "--config", str(desk.config), "--debug")
    assert whole.returncode != 0
    assert "not-the-password" not in whole.stdout + whole.stderr


def test_a_wrong_password_of_the_data_principal_is_known_before_copying_begins(desk: Desk) -> None:
    topic = new_topic(desk.pair.east)
    mirrored = desk.started(topic)
    desk.change("west", {"sasl.password": "not-the-password"})
    before = desk.traces()
    assert desk.run("replicate", mirrored.name, "--runner", "local") == Said(
        2,
        "",
        f"error: cluster west, broker {desk.pair.west.bootstrap}: authentication as 'mirror-data' failed: "
        "check sasl.username and sasl.password\n",
    )
    assert desk.traces() == before


def test_a_mechanism_that_the_broker_does_not_offer_is_named_with_those_it_does(desk: Desk, unchanged: None) -> None:
    desk.change("east", sasl_mechanism="PLAIN")
    assert desk.create("--topics", "t-.*") == Said(
        2,
        "",
        format_sentence("sasl_mechanism_not_enabled", "east", desk.pair.east.bootstrap),
    )


# -- names and expressions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("mirror", "start"), ("mirror", "describe"), ("replicate",), ("mirror", "delete")])
def test_an_unknown_mirror(desk: Desk, unchanged: None, command: tuple[str, ...]) -> None:
    config = load_config(desk.pair.config_path)
    known = {*read_state(config.cluster("east")).mirrors, *read_state(config.cluster("west")).mirrors}
    there = f"are {', '.join(sorted(known))}" if known else "are none"
    assert desk.run(*command, "m-nobody") == Said(
        2, "", f"error: unknown mirror 'm-nobody': there {there}; see `mirrorbook mirror list`\n"
    )


def test_an_unknown_cluster(desk: Desk, unchanged: None) -> None:
    assert desk.create("--topics", "t-.*", destination="north") == Said(
        2, "", f"error: unknown cluster 'north': {desk.config} knows east, west\n"
    )


def test_an_unknown_topic(desk: Desk, unchanged: None) -> None:
    assert desk.create("--topics", "t-no-such") == Said(
        2,
        "",
        format_sentence("unknown_topic", "t-no-such", "east", "mirror-control"),
    )


@pytest.mark.parametrize("option", ["--topics", "--exclude-topics", "--groups"])
def test_a_bad_expression(desk: Desk, unchanged: None, option: str) -> None:
    topics = () if option == "--topics" else ("--topics", "t-.*")
    assert desk.create(*topics, option, "a(b") == Said(
        2,
        "",
        format_sentence("name_pattern_not_re2", option, "a(b"),
    )


def test_no_topics(desk: Desk, unchanged: None) -> None:
    assert desk.create() == Said(2, "", "error: mirror m-never: say which topics: --topics 'orders.*'\n")


def test_a_bad_name(desk: Desk, unchanged: None) -> None:
    assert desk.create("--topics", "t-.*", name="a/b") == Said(
        2, "", format_sentence("mirror_name_characters", "a/b", 63)
    )


def test_the_name_of_a_way_home(desk: Desk, unchanged: None) -> None:
    said = desk.create("--topics", "t-.*", name="orders-back")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(format_sentence("mirror_name_of_a_failback", "orders-back", "orders"))


def test_an_unknown_runner(desk: Desk, unchanged: None) -> None:
    said = desk.run("replicate", "m-any", "--runner", "nosuch")
    assert (said.code, said.out) == (2, "")
    assert "Invalid value for --runner: must be spark or local" in said.err


def test_a_master_that_is_none(desk: Desk) -> None:
    mirrored = desk.started(new_topic(desk.pair.east))
    before = desk.traces()
    assert desk.run("replicate", mirrored.name, "--master", "nosuch://x") == Said(
        2, "", "error: 'nosuch://x' is not a Spark master: local[*], spark://HOST:PORT, k8s://... or yarn\n"
    )
    assert desk.traces() == before


# -- wishes that would do harm -------------------------------------------------------------------------------------


def test_the_same_cluster_on_both_ends_also_under_another_name(desk: Desk, unchanged: None) -> None:
    entry = yaml.safe_load(desk.config.read_text(encoding="utf-8"))["clusters"]["east"]
    desk.change("alias", entry.pop("data"), **{key.replace(".", "_"): value for key, value in entry.items()})
    with ClusterClient(load_config(desk.config).cluster("east")) as client:
        cluster_id = client.metadata(()).cluster_id
    for destination in ("east", "alias"):
        assert desk.create("--topics", "t-.*", destination=destination) == Said(
            3,
            "",
            format_sentence("mirror_needs_two_clusters", "east", destination, cluster_id),
        )


def foreign_words(topic: str, records: int, ends: int) -> str:
    return format_sentence("destination_topic_on_cluster_already_holds", topic, "west", records, ends)


def test_a_destination_topic_with_foreign_data_is_refused_by_name(desk: Desk) -> None:
    topic = new_topic(desk.pair.east, prefix="t-f-")
    both(desk, topic)
    produce(desk.pair.west, topic, 7)
    before = desk.traces()
    assert desk.create("--topics", topic) == Said(3, "", f"error: mirror m-never:\n  - {foreign_words(topic, 7, 7)}\n")
    assert desk.traces() == before


def test_a_mirror_that_exists_is_not_told_to_delete_its_own_copy(desk: Desk) -> None:
    topic = new_topic(desk.pair.east)
    produce(desk.pair.east, topic, 7)
    mirrored = desk.started(topic)
    copied = desk.run("replicate", mirrored.name, "--runner", "local", "--until-caught-up")
    assert copied.code == 0, copied.err
    refused = f"error: mirror {mirrored.name}:\n  - it exists already on cluster west\n"
    again = desk.create("--topics", topic, "--groups", "", name=mirrored.name)
    assert again == Said(3, "", refused)
    other_groups = desk.create("--topics", topic, name=mirrored.name)
    assert other_groups.code == 3
    assert other_groups.err.startswith(refused)
    assert f"`mirrorbook mirror change {mirrored.name}`" in other_groups.err
    other = desk.create("--topics", topic)
    assert other == Said(
        3,
        "",
        format_sentence("destination_topic_of_another_mirror", topic, "west", mirrored.name),
    )


def test_foreign_data_that_came_after_creation_fails_its_topic_and_no_other(desk: Desk) -> None:
    topic, good = new_topic(desk.pair.east, prefix="t-f-"), new_topic(desk.pair.east)
    for name in (topic, good):
        produce(desk.pair.east, name, 20)
    mirrored = desk.started(topic, good)
    both(desk, topic)
    produce(desk.pair.west, topic, 7)
    said = desk.run("replicate", mirrored.name, "--runner", "local", "--until-caught-up")
    assert (said.code, said.err) == (
        1,
        f"error: 1 {MENDED}\n  - {topic}-0: {foreign_words(topic, 7, 7)}\n",
    )
    assert f"FAILED {topic}-0: {foreign_words(topic, 7, 7)}\n" in said.out
    assert len(read_all(desk.pair.west, topic)) == 7
    assert read_all(desk.pair.east, good) == read_all(desk.pair.west, good) != []


def both(desk: Desk, topic: str) -> None:
    """The same topic on west, made by somebody else."""
    admin = admin_client(desk.pair.west)
    admin.create_topics([NewTopic(topic, 1)])[topic].result(TIMEOUT_S)

    def led() -> bool:
        seen = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        return bool(seen) and seen[0].leader >= 0

    wait_until(led, timeout_s=TIMEOUT_S, why=f"west elects a leader of {topic}")


def test_a_mirror_that_was_not_started_is_not_copied(desk: Desk) -> None:
    topic, name = new_topic(desk.pair.east), "m-" + secrets.token_hex(4)
    created = desk.create("--topics", topic, name=name)
    assert (created.code, created.err) == (0, "")
    before = desk.traces()
    assert desk.run("replicate", name, "--runner", "local") == Said(
        3, "", f"error: mirror {name}:\n  - it is STOPPED: `mirrorbook mirror start {name}` lets it run\n"
    )
    assert desk.traces() == before
    again = desk.create("--topics", topic, name=name)
    assert again == Said(3, "", f"error: mirror {name}:\n  - it exists already on cluster west\n")


def test_without_a_terminal_nothing_is_done_that_was_not_agreed_to(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = new_topic(desk.pair.east)
    before = desk.traces()
    with (desk.folder / "mirrorbook.yaml").open() as no_terminal:
        monkeypatch.setattr(sys, "stdin", no_terminal)
        said = desk.run("mirror", "create", "m-never", "--source", "east", "--destination", "west", "--topics", topic)
    assert (said.code, said.err) == (
        3,
        format_sentence("confirmation_required"),
    )
    assert desk.traces() == before


def test_a_run_that_fails_behind_the_fence_says_that_nobody_can_write_and_what_to_do(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(desk.pair.east)
    produce(desk.pair.east, topic, 3)
    name = desk.started(topic).name
    assert desk.run("replicate", name, "--runner", "local", "--until-caught-up").code == 0

    def breaks(steps: PlannedSteps) -> None:
        raise MirrorError("the link is down")

    with monkeypatch.context() as patched:
        patched.setattr(PlannedSteps, "drain", breaks)
        said = desk.run("failover", "run", name, "--yes", "--runner", "local")
    assert said.code == 1
    error, *last = said.err.splitlines()
    assert error == "error: the link is down"
    assert format_sentence("nobody_can_write_these_topics", "east", "west") in last
    assert format_sentence("unplanned_goes_on", "east", name) in last
    assert "NOBODY CAN WRITE" in desk.run("failover", "status", name).out
    with killed(desk.pair.east):
        asked = desk.run("failover", "abort", name)
    assert asked.code == 3
    assert "east does not answer: after an abort nobody can write" in asked.out
    assert f"mirrorbook failover run {name} --mode unplanned" in asked.out
    given_up = desk.run("failover", "abort", name, "--yes")
    assert (given_up.code, given_up.err) == (0, "")
    assert "Applications write on east, as before." in given_up.out
