"""The barrier behind every change of access rights: who does not show it is named, and nobody is waited for twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.kafka import acl_requests, fan_out
from mirror_core.kafka.acl_requests import AuthorizerOff, BrokerAcls, wait_until_acls_absent, wait_until_acls_present
from mirror_core.model.acl import Acl, Operation, Permission, Resource
from mirror_core.model.config_sections import AuthorizerKind
from mirror_core.model.errors import MissingPermission, RemoteFault, Unreachable
from tests.support.sentences import format_sentence

RIGHT = Acl(
    resource=Resource.TOPIC, name="t", principal="User:app", operation=Operation.WRITE, permission=Permission.DENY
)
HELD, NONE = BrokerAcls(frozenset({RIGHT})), BrokerAcls(frozenset())
TIMEOUT_S = 0.05
Said = BrokerAcls | AuthorizerOff | RemoteFault


class Cluster:
    """Brokers that say this, one look after the other; the last for ever. `gone`: leave its metadata after a look."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, by: Mapping[int, list[Said]], gone: tuple[int, ...] = ()
    ) -> None:
        self.by, self.gone, self.looks = {b: list(said) for b, said in by.items()}, gone, list[set[int]]()
        self.timed_out_at = dict[int, float]()
        self.name, self.config = "west", SimpleNamespace(ruling=SimpleNamespace(authorizer=AuthorizerKind.KAFKA))
        monkeypatch.setattr(fan_out, "call_brokers", self.ask)
        monkeypatch.setattr(acl_requests, "parse_acls", lambda client, said: self.say(said))

    def brokers(self) -> tuple[int, ...]:
        return tuple(b for b in self.by if not (self.looks and b in self.gone))

    def ask(self, client: object, asked: Mapping[int, Callable[[Any], bool]]) -> dict[int, bool | RemoteFault]:
        self.looks.append(set(asked))
        found: dict[int, bool | RemoteFault] = {}
        for broker, shows in asked.items():
            said = self.by[broker]
            word = said.pop(0) if len(said) > 1 else said[0]
            try:
                found[broker] = shows(SimpleNamespace(where=f"broker {broker}", call=lambda request, kind, w=word: w))
            except RemoteFault as error:
                found[broker] = error
        return found

    def say(self, said: Said) -> BrokerAcls | AuthorizerOff:
        if isinstance(said, RemoteFault):
            raise said
        return said


def test_each_is_asked_until_it_shows_it_and_then_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    west: Any = Cluster(monkeypatch, {1: [HELD], 2: [NONE, Unreachable("no answer"), HELD], 3: [NONE, HELD]})
    wait_until_acls_present(west, [RIGHT], timeout_s=60)
    assert west.looks == [{1, 2, 3}, {2, 3}, {2}]


def test_who_still_lets_it_be_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    west: Any = Cluster(monkeypatch, {1: [HELD], 2: [NONE]})
    with pytest.raises(Unreachable, match=r"broker 2: timed out after 0 s: .* all of 1 ACL$"):
        wait_until_acls_present(west, [RIGHT], timeout_s=0)
    monkeypatch.setattr(acl_requests, "ACL_BARRIER_S", 0.0)
    with pytest.raises(Unreachable, match=format_sentence("acl_barrier_timed_out_pattern")):
        wait_until_acls_absent(west, [RIGHT])


def test_who_hangs_counts_until_it_has_left_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    by: dict[int, list[Said]] = {1: [HELD], 2: [Unreachable("it hangs")]}
    hangs: Any = Cluster(monkeypatch, by)
    with pytest.raises(Unreachable, match=r"broker 2: timed out .*: it hangs"):
        wait_until_acls_present(hangs, [RIGHT], timeout_s=0)
    left: Any = Cluster(monkeypatch, by, gone=(2,))
    wait_until_acls_present(left, [RIGHT], timeout_s=60)


@pytest.mark.parametrize("word", [AuthorizerOff("west"), MissingPermission("not allowed")])
def test_what_no_further_look_can_change_is_raised_at_once(monkeypatch: pytest.MonkeyPatch, word: Said) -> None:
    west: Any = Cluster(monkeypatch, {1: [HELD], 2: [word]})
    with pytest.raises(RemoteFault, match=r"broker 2: has no authorizer|not allowed") as raised:
        wait_until_acls_present(west, [RIGHT], timeout_s=600)
    assert not isinstance(raised.value, Unreachable)
    assert len(west.looks) == 1


def test_nothing_is_asked_about_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    west: Any = Cluster(monkeypatch, {1: [NONE]})
    wait_until_acls_present(west, [])
    assert not west.looks


class Broker:
    """What each question to it comes to, one after the other; the last for ever."""

    def __init__(self, *said: BrokerAcls | RemoteFault | None) -> None:
        self.said, self.closed, self.where, self.round_trip_s = list(said), 0, "broker 1", 0.0

    def call(self, request: object, kind: object) -> BrokerAcls:
        word = self.said.pop(0) if len(self.said) > 1 else self.said[0]
        if word is None:
            time.sleep(TIMEOUT_S)
            raise Unreachable("no answer")
        if isinstance(word, RemoteFault):
            raise word
        return word

    def close(self) -> None:
        self.closed += 1


class Asking:
    """A client of one broker, asked as brokers are: by connections that are lent and given back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broker: Broker) -> None:
        self.broker, self.kept, self.timed_out_at = broker, True, dict[int, float]()
        self.name, self.timeout_s, self.round_trip_s, self.fail_fast = "west", TIMEOUT_S, 0.0, False
        self.config = SimpleNamespace(ruling=SimpleNamespace(authorizer=AuthorizerKind.KAFKA))
        monkeypatch.setattr(acl_requests, "parse_acls", lambda client, said: said)

    def brokers(self) -> tuple[int, ...]:
        return (1,)

    def address(self, broker: int) -> tuple[str, int]:
        return "h", broker

    def borrow_connection(self, address: object) -> Broker | None:
        kept, self.kept = self.kept, False
        return self.broker if kept else None

    def open(self, address: object) -> Broker:
        return self.broker

    def return_connection(self, address: object, connection: object) -> None:
        self.kept = True


def test_who_was_silent_for_a_time_limit_and_answers_again_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one behind a firewall that has forgotten an idle connection: there is time for another look."""
    west: Any = Asking(monkeypatch, Broker(None, None, HELD))
    began = time.monotonic()
    wait_until_acls_present(west, [RIGHT], timeout_s=3.0)
    assert time.monotonic() - began < 3.0


def test_who_does_not_answer_at_all_is_waited_for_once_more_at_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    west: Any = Asking(monkeypatch, Broker(None))
    with pytest.raises(Unreachable, match="broker 1: timed out after"):
        wait_until_acls_present(west, [RIGHT], timeout_s=0.0)


def test_a_connection_whose_answer_makes_no_sense_is_used_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(RemoteFault("answer to request 1 where 2 was due"))
    west: Any = Asking(monkeypatch, broker)
    with pytest.raises(RemoteFault, match=r"^answer to request 1 where 2 was due$"):
        wait_until_acls_present(west, [RIGHT], timeout_s=60.0)
    assert (broker.closed, west.kept) == (1, False)


def test_what_refuses_a_connection_for_good_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It proves no knowledge of our password, say: nobody waits for that to change."""
    west: Any = Asking(monkeypatch, Broker(HELD))
    west.kept = False

    def opened(address: object) -> Broker:
        raise RemoteFault("the server is not trusted")

    monkeypatch.setattr(west, "open", opened)
    with pytest.raises(RemoteFault, match=r"^the server is not trusted$") as raised:
        wait_until_acls_present(west, [RIGHT], timeout_s=0.3)
    assert not isinstance(raised.value, Unreachable)
