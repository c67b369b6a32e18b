"""Whoever opens or promotes beside another mirror, a file that was used, or a failback: nothing opens that must not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.evidence.fence_file import fence_file_path, write_fence_file
from mirror_core.kafka.acl_requests import AuthorizerOff
from mirror_core.kafka.config import Config
from mirror_core.mirrors import fence_manual_commands
from mirror_core.model.errors import LostOwnership, Refused, Unreachable
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.run import RunKind, RunMode
from mirror_core.runbook import fence_actions, fence_recheck, unplanned_steps
from mirror_core.runbook.fence_recheck import PromotionProbe
from mirror_core.runbook.unplanned_steps import UnplannedSteps
from mirror_core.state import mirror_link as linking
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State
from mirror_core.sync import fence_command, fence_command_runner
from mirror_core.sync.fence_command import build_command_target
from mirror_core.sync.fence_command_runner import CommandNotReconciled, open_destination
from tests.support.fence_commands import MIRROR, TOPICS, acted, called, linked
from tests.support.fence_files import FENCE
from tests.support.memory_state import MemoryLog, journal_of
from tests.support.reopened_clusters import (
    CLOSED,
    EAST,
    NORTH,
    aborted,
    closed,
    log_of,
    mirrored,
    other_mirror,
    third,
    topics_told,
)

P0 = Partition("orders", 0)


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MirrorLink:
    """The source answers, and nobody waits between two tries."""
    for module in (fence_actions, fence_recheck):
        monkeypatch.setattr(module, "ClusterClient", lambda *a, **k: nullcontext(SimpleNamespace(name="east")))
        monkeypatch.setattr(module, "check_source_id", lambda *a: None)
    monkeypatch.setattr(fence_command, "compute_retry_pause_s", lambda tries: 0.0)
    return linked(tmp_path)


def states_of(monkeypatch: pytest.MonkeyPatch, state: State) -> None:
    """Of the mirror's source; all others have none."""

    def states(config: Config) -> Iterator[tuple[ClusterName, State]]:
        for name in config.clusters:
            yield name, state if name == EAST else State()

    monkeypatch.setattr(linking, "read_states", states)


@pytest.mark.parametrize("lifted", [True, False], ids=["by its own file", "by a copy of it"])
def test_an_unplanned_promotion_stops_before_a_source_that_was_opened_meanwhile_and_took_writes(
    link: MirrorLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lifted: bool
) -> None:
    journal = journal_of("r", "stand", "promote")
    run = replace(journal.run, plan=replace(journal.run.plan, mode=RunMode.UNPLANNED))
    log = log_of(journal)
    copied = [replace(r, status=replace(r.status, lmo=Offset(7))) for r in mirrored(MIRROR.name, ("orders",))]
    log.put(run, MIRROR, *copied, replace(CLOSED, run="r"))
    fence = replace(FENCE, command=True, lifted_ms=5 if lifted else None)
    write_fence_file(fence_file_path(tmp_path / "run-r", "r"), fence, "advice")
    monkeypatch.setattr(
        unplanned_steps, "probe_source", lambda *a: PromotionProbe(log_ends={P0: Offset(9)})
    )  # behind the fence: 7
    monkeypatch.setattr(UnplannedSteps, "check_approval", lambda self, what, source_needed: False)
    scope = SimpleNamespace(topic_names=["orders"], promoted=[P0], drained=[P0])
    monkeypatch.setattr(UnplannedSteps, "scope", property(lambda self: scope))
    monkeypatch.setattr(fence_recheck, "list_known_offsets", lambda *a: {P0: Offset(9)})
    monkeypatch.setattr(fence_recheck, "check_stillness", lambda *a: {P0: Offset(9)})
    monkeypatch.setattr(fence_recheck, "deny_all_writers", lambda *a, **k: AuthorizerOff("rules itself"))
    given: list[object] = []
    monkeypatch.setattr(UnplannedSteps, "_grant_rights", lambda self, before: given.append(before()))
    services = cast("Any", SimpleNamespace(evidence_dir=tmp_path))
    steps = UnplannedSteps(link, services, cast("Any", log), journal, lambda line: None)
    with pytest.raises(Refused):
        steps.get_action("promote")()
    assert given == []


def test_an_abort_opens_nothing_that_is_another_mirrors_destination(
    link: MirrorLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = replace(
        MIRROR,
        name=MirrorName("up"),
        source=NORTH,
        destination=EAST,
        source_id="N",
        destination_id="E",
        desired=DesiredState.STARTED,
    )
    assert isinstance(up, Mirror)
    there = MemoryLog()
    there.put(up, *mirrored(up.name, ("orders",)))
    states_of(monkeypatch, there.state)
    aborted(link, closed())
    assert "orders" not in (topics_told(link) if called(link) else [])


def test_an_abort_beside_a_failback_of_the_same_topics_stays_pending(
    link: MirrorLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be home by now, and opens nothing any more."""
    monkeypatch.setattr("mirror_core.sync.fence_command_runner.read_source_state", lambda link: ())
    there, run = MemoryLog(), journal_of("f").run
    run = replace(run, plan=replace(run.plan, kind=RunKind.FAILBACK, mirror=MirrorName("other")))
    there.put(*other_mirror(towards="north"), run)
    third(monkeypatch, there.state)
    journal = closed()
    aborted(link, journal)
    assert MIRROR.name in log_of(journal).state.pending_fences


def test_by_a_file_of_a_cluster_that_has_another_name_now_nothing_is_opened_that_another_failover_keeps_closed(
    link: MirrorLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, old = MemoryLog(), ClusterName("old-east")
    mirror, *records = other_mirror(CLOSED, towards="north")
    assert isinstance(mirror, Mirror)
    there.put(replace(mirror, source=old), *records)
    monkeypatch.setattr(fence_manual_commands, "read_states", lambda config: iter([(NORTH, there.state)]))
    monkeypatch.setattr(fence_manual_commands, "_read_destination", lambda config, fence: Refused("silent", []))
    fence = replace(
        FENCE,
        cluster=old,
        cluster_id="E",
        destination=ClusterName("west"),
        mirror=MIRROR.name,
        topics=TOPICS,
        command=True,
    )
    fence_manual_commands.lift_by_file(link.config, link.source, fence, tmp_path / "unfence-r.json", lifted_by="test")
    assert topics_told(link) == ["a.b"]


def test_a_destination_that_is_opened_late_beside_a_failback_is_told(
    link: MirrorLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = journal_of("f").run
    log = MemoryLog()
    log.put(replace(MIRROR, desired=DesiredState.STOPPED), replace(run, plan=replace(run.plan, kind=RunKind.FAILBACK)))
    monkeypatch.setattr(fence_command_runner, "read_complete_state", lambda cluster: log.state)
    first = iter([None])

    def write_down() -> None:
        if next(first, 1):
            raise LostOwnership("another has it")

    with pytest.raises(CommandNotReconciled):
        open_destination(link, build_command_target(link, ClusterName("west"), "r", TOPICS), write_down)
    assert called(link) == ["unfence"]


def test_a_fence_of_denials_that_was_lifted_by_its_file_is_pending_again_also_while_its_source_is_silent(
    link: MirrorLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journal_of("r", "promote")
    log_of(journal).put(MIRROR, replace(CLOSED, run="r", by_command=False))
    write_fence_file(fence_file_path(tmp_path / "run-r", "r"), replace(FENCE, lifted_ms=5), "advice")

    def silent(*_: object) -> None:
        raise Unreachable("no broker answers")

    monkeypatch.setattr(fence_recheck, "check_source_id", silent)
    acts = replace(acted(link, tmp_path, journal), writer=cast("Any", journal.log))
    fence_recheck.reapply_fence(acts, ["orders"], [P0])
    assert log_of(journal).state.pending_fences[MIRROR.name].applied_at_ms is None
