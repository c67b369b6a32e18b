"""`authorizer` in mirrorbook.yaml: what it may say, and that no ACL is asked for or changed where it is not Kafka's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
import yaml

from mirror_core.kafka.acl_requests import (
    AuthorizerOff,
    create_acls,
    delete_acls,
    describe_acls,
    describe_acls_on_each_broker,
)
from mirror_core.kafka.config import ClusterConfig, Principal, load_config
from mirror_core.model.config_sections import AuthorizerConfig, AuthorizerKind, WriteBarrier
from mirror_core.model.errors import BadRequest
from mirror_core.model.names import ClusterName
from mirror_core.rights.acl_rules import build_denial

COMMANDS = {"fence_command": {"command": ["/bin/close", "x"]}, "unfence_command": {"command": ["/bin/open"]}}


def east(folder: Path, *, only: Principal | None = None, **entries: object) -> ClusterConfig:
    path = folder / "mirrorbook.yaml"
    path.write_text(yaml.safe_dump({"clusters": {"east": {"bootstrap.servers": "h:1", **entries}}}))
    return load_config(path, only_principal=only).cluster("east")


def closable() -> dict[str, Any]:
    return {**COMMANDS}


def test_kafkas_acls_are_the_default(tmp_path: Path) -> None:
    assert east(tmp_path).ruling == AuthorizerConfig() == AuthorizerConfig(authorizer=AuthorizerKind.KAFKA)
    assert east(tmp_path, authorizer="kafka").ruling == AuthorizerConfig()


def test_it_is_no_client_property(tmp_path: Path) -> None:
    for only in (None, *Principal):
        found = east(tmp_path, only=only, authorizer="foreign", **closable())
        assert found.control.keys() | found.data.keys() <= {"bootstrap.servers"}
        assert found.ruling.is_foreign


def test_commands_have_the_limits_of_hooks(tmp_path: Path) -> None:
    limits = {"timeout_s": 60, "retries": 1}
    fence = {"command": ["/bin/close", "x"], **limits}
    found = east(tmp_path, authorizer="foreign", fence_command=fence, unfence_command=COMMANDS["unfence_command"])
    assert found.ruling.fence_command is not None
    assert (
        found.ruling.fence_command.name,
        found.ruling.fence_command.timeout_s,
        found.ruling.fence_command.retries,
    ) == (
        "fence_command",
        60,
        1,
    )
    assert found.ruling.fence_command.description == "command /bin/close, at most 2 times, 60 s each"
    assert found.ruling.unfence_command is not None
    assert found.ruling.unfence_command.timeout_s == 30


@pytest.mark.parametrize(
    ("entries", "refused"),
    [
        ({"authorizer": "foreigner"}, r"'foreigner' is none of kafka, none, foreign; is foreign meant\?"),
        ({"authorizer": None}, "'None' is none of"),
        ({"authorizer": ["none"]}, "is none of"),
        (COMMANDS, "fence_command: only for a cluster with `authorizer: foreign`; with `authorizer: kafka`"),
        ({"authorizer": "none", **COMMANDS}, "fence_command: only for a cluster"),
        (
            {"authorizer": "foreign", "fence_command": COMMANDS["fence_command"]},
            "unfence_command: is missing; .* both commands are needed",
        ),
        ({"authorizer": "foreign", "unfence_command": COMMANDS["unfence_command"]}, "fence_command: is missing"),
        ({"authorizer": "foreign", **COMMANDS, "fence_command": ["x"]}, "fence_command: must be a mapping"),
        ({"authorizer": "foreign", **COMMANDS, "fence_command": {"timeout_s": 1}}, "needs a command"),
        (
            {"authorizer": "foreign", **COMMANDS, "fence_command": {"command": "rm -rf secret"}},
            "fence_command.command: must be a list",
        ),
        ({"authorizer": "foreign", **COMMANDS, "fence_command": {"command": ["x"], "http": {}}}, "unknown 'http'"),
        ({"data": {"authorizer": "foreign"}}, r"east\.data\.authorizer: is the cluster's, not its data principal's"),
        ({"authoriser": "foreign"}, r"no such property of Kafka's client; is authorizer meant\?"),
    ],
)
def test_mistakes_are_named_without_what_was_written_for_a_command(
    tmp_path: Path, entries: dict[str, Any], refused: str
) -> None:
    with pytest.raises(BadRequest, match=refused) as caught:
        east(tmp_path, only=None, **entries)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("ruling", "denials", "barred"),
    [
        (AuthorizerConfig(), True, WriteBarrier.DENY_ACLS),
        (AuthorizerConfig(), False, WriteBarrier.NONE),
        (AuthorizerConfig(authorizer=AuthorizerKind.NONE), True, WriteBarrier.NONE),
        (AuthorizerConfig(authorizer=AuthorizerKind.FOREIGN), True, WriteBarrier.NONE),
    ],
)
def test_what_keeps_writers_out(ruling: AuthorizerConfig, denials: bool, barred: WriteBarrier) -> None:
    assert ruling.get_write_barrier(denials_possible=denials) is barred


def test_a_command_does_and_not_for_a_drill(tmp_path: Path) -> None:
    ruling = east(tmp_path, only=None, authorizer="foreign", **closable()).ruling
    assert ruling.get_write_barrier(denials_possible=False) is WriteBarrier.COMMAND
    assert ruling.without_commands() == AuthorizerConfig(authorizer=AuthorizerKind.FOREIGN)


class Silent:
    """A client of a cluster whose ACL requests nobody answers."""

    name, timeout_s = ClusterName("east"), 1.0

    def __init__(self, authorizer: AuthorizerKind) -> None:
        self.config = ClusterConfig(self.name, {}, {}, ruling=AuthorizerConfig(authorizer=authorizer))

    def brokers(self) -> tuple[int, ...]:
        return (1, 2)

    def call(self, *arguments: object) -> NoReturn:
        raise AssertionError("the ACL API was called")

    call_controller_each = call


@pytest.mark.parametrize("authorizer", [AuthorizerKind.NONE, AuthorizerKind.FOREIGN])
def test_no_acl_is_read_or_written_where_they_do_not_rule(authorizer: AuthorizerKind) -> None:
    client = cast("Any", Silent(authorizer))
    off = AuthorizerOff(client.name, authorizer)
    assert describe_acls(client) == describe_acls(client, 2) == off
    assert describe_acls_on_each_broker(client) == {1: off, 2: off}
    create_acls(client, [])
    delete_acls(client, [])
    for change in (create_acls, delete_acls):
        with pytest.raises(BadRequest, match=f"`authorizer: {authorizer}`. They were made when it said `authorizer: k"):
            change(client, [build_denial("orders")])
