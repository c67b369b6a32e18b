"""Which open transactions hold a fence up, and which are denied with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from mirror_core.kafka import transactions
from mirror_core.kafka.log_offsets import OffsetPoint
from mirror_core.kafka.transactions import OpenTransaction
from mirror_core.model.errors import LostOwnership
from mirror_core.model.names import Offset, Partition
from mirror_core.sync import fence_acls
from mirror_core.sync.fence_acls import NotFenced, apply_fence, wait_for_stillness

P0, P1, LONE = Partition("orders", 0), Partition("orders", 1), Partition("lone", 0)
ONE = OpenTransaction(id="t", state="Ongoing", timeout_s=60, partitions=frozenset({P1}), producer_id=1, started_ms=1)
FAILED = Partition("orders", 2)
LED, UNLED = Partition("__consumer_offsets", 0), Partition("__consumer_offsets", 1)
CLIENT: Any = SimpleNamespace(name="east", brokers=lambda: (1,))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[OpenTransaction]:
    """What is open on a cluster whose logs stand still."""
    found = list[OpenTransaction]()

    def open_on(client: object, topics: Collection[str]) -> tuple[OpenTransaction, ...]:
        return tuple(one for one in found if any(p.topic in topics for p in one.partitions))

    def ends(client: object, partitions: Iterable[Partition], point: OffsetPoint) -> dict[Partition, Offset]:
        return dict.fromkeys(partitions, Offset(5))

    def points(
        client: object, partitions: Iterable[Partition], points: Iterable[OffsetPoint]
    ) -> dict[OffsetPoint, Any]:
        return {point: ends(client, partitions, point) for point in points}

    monkeypatch.setattr(fence_acls, "list_open_transactions", open_on)
    monkeypatch.setattr(fence_acls, "list_offsets", ends)
    monkeypatch.setattr(fence_acls, "list_offset_points", points)
    monkeypatch.setattr(
        fence_acls, "find_offline_partitions", lambda client, asked: frozenset(asked) & {UNLED, P1, LONE}
    )
    return found


@pytest.mark.parametrize(
    ("state", "change", "holds"),
    [
        ("Ongoing", {}, True),  # groups' offsets in it are not settled, wherever it has written
        ("Ongoing", {"partitions": frozenset({LONE})}, True),
        ("PrepareEpochFence", {}, True),
        ("PrepareCommit", {}, False),  # nobody leads what its marker is missing on
        ("PrepareCommit", {"partitions": frozenset({FAILED})}, True),  # that has a leader, and is not drained
        ("PrepareAbort", {}, False),
        ("PrepareCommit", {"offsets_partitions": frozenset({LED})}, True),
        ("PrepareCommit", {"offsets_partitions": frozenset({LED, UNLED})}, True),
        ("PrepareAbort", {"offsets_partitions": frozenset({UNLED})}, False),  # nobody can read these offsets either
        ("Ongoing", {"offsets_partitions": frozenset({UNLED})}, True),
        ("PrepareAbort", {"partitions": frozenset({P0, P1})}, True),
    ],
)
def test_a_fence_waits_for_a_transaction_that_may_still_change_what_is_drained_or_groups(
    found: list[OpenTransaction], state: str, change: dict[str, Any], holds: bool
) -> None:
    found.append(replace(ONE, state=state, **change))
    topics = ["orders", "lone"]
    ends = r"its markers are missing" if found[0].is_decided else "its coordinator aborts it after 60 s"
    if holds:
        with pytest.raises(NotFenced, match=rf"transaction 't' is {state} \({ends}\)"):
            wait_for_stillness(CLIENT, topics, [P0], pause_s=0, transaction_wait_s=-1)
    else:
        assert wait_for_stillness(CLIENT, topics, [P0], pause_s=0, transaction_wait_s=-1) == {P0: 5}


def test_a_wait_for_a_transaction_is_said_and_ends_when_the_run_is_lost(
    found: list[OpenTransaction], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, lines = iter(range(0, 1_000, 3)), list[str]()
    monkeypatch.setattr(fence_acls, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda seconds: None))
    found.append(ONE)

    def report(line: str) -> None:
        lines.append(line)
        if len(lines) == 2:
            raise LostOwnership("another process now controls this mirror")

    nothing: Any = None
    monkeypatch.setattr(fence_acls, "deny_writes", lambda *arguments, **options: frozenset())
    with pytest.raises(LostOwnership):
        apply_fence(nothing, nothing, CLIENT, ["orders"], [P0], report_wait=report)
    assert [line.split(": transaction 't' is Ongoing (")[0] for line in lines] == [
        "waiting, 6 s of at most 120 s",
        "waiting, 12 s of at most 120 s",
    ]


def test_transactions_of_a_topic_that_is_left_behind_as_a_whole_are_denied_and_waited_for(
    found: list[OpenTransaction], monkeypatch: pytest.MonkeyPatch
) -> None:
    denied = list[tuple[Collection[str], list[str]]]()

    def deny(link: object, log: object, client: object, topics: Collection[str], ids: list[str], **_: object) -> Any:
        denied.append((topics, ids))
        return frozenset()

    monkeypatch.setattr(fence_acls, "deny_writes", deny)
    nothing: Any = None
    found.append(replace(ONE, partitions=frozenset({LONE})))
    with pytest.raises(NotFenced, match="transaction 't' is Ongoing"):
        apply_fence(nothing, nothing, CLIENT, ["lone", "orders"], [P0], transaction_wait_s=-1)
    assert denied == [(["lone", "orders"], ["t"])]
    found[0] = replace(found[0], state="PrepareAbort")
    assert apply_fence(nothing, nothing, CLIENT, ["lone", "orders"], [P0]).transactions == (), "not waited for"


@pytest.mark.parametrize(
    ("topics", "groups"), [(("orders",), frozenset()), (("orders", "__consumer_offsets"), frozenset({UNLED}))]
)
def test_a_transaction_says_which_groups_offsets_wait_for_its_end(
    topics: tuple[str, ...], groups: frozenset[Partition]
) -> None:
    row = SimpleNamespace(
        error_code=ErrorCode.none,
        transactional_id="t",
        transaction_state="PrepareCommit",
        transaction_timeout=timedelta(seconds=60),
        transaction_start_time=datetime.fromtimestamp(1, UTC),
        producer_id=1,
        topics=[SimpleNamespace(topic=topic, partitions=[1]) for topic in topics],
    )
    client: Any = SimpleNamespace(name="east", call=lambda *_: SimpleNamespace(transaction_states=[row]))
    [one] = transactions._describe(client, 1, cast("Any", ["t"]), {"orders"})
    assert (one.partitions, one.offsets_partitions) == (frozenset({P1}), groups)
