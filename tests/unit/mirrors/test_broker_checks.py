"""Destination brokers that forget who has written to a partition: each is asked, whatever others say."""

from __future__ import annotations

from typing import Any, cast

import pytest

from mirror_core.mirrors import broker_checks
from mirror_core.mirrors.broker_checks import MAX_EXPIRY_MS
from mirror_core.model.errors import MissingPermission, Unreachable

CLIENT = cast("Any", None)
FORGETS = ("86400000", True)


def asked(monkeypatch: pytest.MonkeyPatch, answers: dict[int, object]) -> broker_checks.ProducerExpiryCheck:
    def answer(client: object, broker: int, name: str) -> object:
        if isinstance(said := answers[broker], Exception):
            raise said
        return said

    monkeypatch.setattr(broker_checks, "fetch_broker_setting", answer)
    return broker_checks.check_producer_expiry(CLIENT, sorted(answers))


def test_who_forgets_is_named_and_who_keeps_or_has_no_such_setting_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    dynamic = (MAX_EXPIRY_MS, False)
    found = asked(monkeypatch, {1: (MAX_EXPIRY_MS, True), 2: FORGETS, 3: None, 4: dynamic})
    assert [(finding.subject, finding.values["expiry_ms"]) for finding in found.expiring] == [
        ("2", FORGETS[0]),
        ("4", MAX_EXPIRY_MS),
    ]
    assert found.unknown == ()


def test_a_silent_broker_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked(monkeypatch, {1: Unreachable("no answer"), 2: FORGETS, 3: Unreachable("no answer")})
    assert [finding.subject for finding in found.expiring] == ["2"]
    assert ["broker 1" in found.unknown[0], "broker 3" in found.unknown[1]] == [True, True]


def test_a_right_that_is_missing_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked(monkeypatch, {broker: MissingPermission("denied") for broker in (1, 2, 3)})
    assert (found.expiring, len(found.unknown)) == ((), 1)
