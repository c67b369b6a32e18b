"""What one topic is refused, or answers, does not end the driver."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.epoch_planner import Planner
from mirror_core.kafka.error_mapping import ErrorCode, make_fault
from mirror_core.model.errors import BadRequest, Indeterminate, MirrorError, MissingPermission, RemoteFault, Unreachable
from mirror_core.model.names import Offset, Partition
from tests.support.sentences import format_sentence

GOOD, BAD = Partition("good", 0), Partition("bad", 0)


def planner(monkeypatch: pytest.MonkeyPatch, error: MirrorError | None) -> Planner:
    """Of two logs that begin later on the source than on the destination."""
    starts = {"east": 50, "west": 10}

    def known(client: Any, partitions: list[Partition], point: Any, *, topics: Any) -> dict[Partition, Offset]:
        offset = 100 if point.name == "HIGH_WATERMARK" else starts[client.name]
        return dict.fromkeys(partitions, Offset(offset))

    def delete(client: Any, until: dict[Partition, Offset]) -> None:
        assert until == {GOOD: 50, BAD: 50}
        if error is not None:
            raise error

    monkeypatch.setattr("mirror_core.dataplane.epoch_planner._fetch_known_offsets", known)
    monkeypatch.setattr("mirror_core.dataplane.epoch_planner.delete_records", delete)
    link: Any = SimpleNamespace()
    east, west = (SimpleNamespace(name=name) for name in ("east", "west"))
    return Planner(link, east, west)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [RemoteFault, MissingPermission])
def test_a_log_start_that_may_not_be_moved_concerns_its_partition(
    monkeypatch: pytest.MonkeyPatch, kind: type[RemoteFault]
) -> None:
    made = planner(monkeypatch, kind("two", {BAD: kind("bad-0: not this one")}))
    assert made.follow_log_start([GOOD, BAD]) == []
    made.move_log_starts()
    assert made.unmoved_starts == {BAD: "bad-0: not this one"}
    monkeypatch.setattr("mirror_core.dataplane.epoch_planner.delete_records", lambda client, until: None)
    assert made.follow_log_start([GOOD, BAD]) == []
    made.move_log_starts()
    assert made.unmoved_starts == {}, "it is moved now"


def test_a_cluster_that_keeps_silent_is_another_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = planner(monkeypatch, Unreachable("west"))
    silent.follow_log_start([GOOD, BAD])
    with pytest.raises(Unreachable):
        silent.move_log_starts()


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (RemoteFault("frame of 300000000 bytes announced"), False),
        (MissingPermission("topic bad: READ"), False),
        (Unreachable("west"), False),
        (Indeterminate("Spark is gone"), True),
    ],
)
def test_what_an_epoch_fails_of_ends_the_driver_only_when_the_next_one_would_fail_too(
    error: MirrorError, ends: bool
) -> None:
    link: Any = SimpleNamespace(mirror=SimpleNamespace(name="m"), source=None, destination=None)
    said = list[str]()
    driver = Replication(link, SimpleNamespace, ReplicationOptions(), stop=Any, report_line=said.append)  # type: ignore[arg-type]
    lease: Any = SimpleNamespace()
    epoch: Any = SimpleNamespace(number=1)
    if ends:
        with pytest.raises(Indeterminate):
            driver._handle_epoch_failure(lease, epoch, error, final=False)
    else:
        driver._handle_epoch_failure(lease, epoch, error, final=False)
    assert said == [f"epoch 1 failed, the next one looks at the destination: {error}"]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("Request Request(processor=1, session=org.apache.kafka.network.Session@68ab8a7d) needs DESCRIBE", ""),
        ("no, by rule 7", " (no, by rule 7)"),
        (None, ""),
    ],
)
def test_a_denial_is_told_without_a_brokers_own_object(words: str | None, shown: str) -> None:
    client: Any = SimpleNamespace(name="west", principal=None, config=SimpleNamespace(user=lambda principal: "mirror"))
    assert str(make_fault(client, "ACLs", "DescribeAcls", ErrorCode.cluster_authorization_failed, words)) == (
        format_sentence("describe_acls_not_authorized", "west", shown, "west")
    )


def test_a_bad_request_ends_a_driver_that_has_never_copied_and_not_one_whose_files_are_being_replaced() -> None:
    link: Any = SimpleNamespace(mirror=SimpleNamespace(name="m"), source=None, destination=None)
    said = list[str]()
    driver = Replication(link, SimpleNamespace, ReplicationOptions(), stop=Any, report_line=said.append)  # type: ignore[arg-type]
    lease: Any = SimpleNamespace()
    driver.results.receipts = cast("Any", SimpleNamespace(write_heads=lambda lease: None))

    def failed() -> Any:
        tasks = Future[Any]()
        tasks.set_exception(BadRequest("certificate and key do not match"))
        return SimpleNamespace(tasks=tasks, epoch=SimpleNamespace(number=1))

    driver._running = [failed()]
    with pytest.raises(BadRequest):
        driver._collect_reports(lease)
    assert not said
    driver._has_copied, driver._running = True, [failed()]
    nothing = {
        name: (lambda *_, **__: None) for name in ("apply_plan", "handle_lost_epoch", "record_trimmed", "write_heads")
    }
    driver.results = cast("Any", SimpleNamespace(**nothing, receipts=SimpleNamespace(**nothing)))
    driver._collect_reports(lease)
    assert said == [format_sentence("epoch_failed", 1)]
