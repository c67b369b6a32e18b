"""A cluster that ACLs do not rule is closed and opened by commands of the user's: what they are told, and who may."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.decide.fence_state import must_stay_fenced
from mirror_core.evidence.fence_file import mark_lifted, read_fence_file
from mirror_core.model.errors import LostOwnership, Refused
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run import Run, RunKind, RunState
from mirror_core.runbook import unplanned_steps
from mirror_core.runbook.fence_actions import CommandFence, LiftFile
from mirror_core.runbook.hook_calls import warn_unusable_fence_commands
from mirror_core.runbook.unplanned_steps import UnplannedSteps
from mirror_core.state.mirror_link import MirrorLink, make_mirror_link
from mirror_core.state.state_records import State
from mirror_core.sync import fence_command, fence_command_runner
from mirror_core.sync.fence_command import (
    ClusterClosed,
    FenceCommandFailed,
    FenceCommandTarget,
    build_command_target,
    has_closed_source,
    run_fence_command,
    run_unfence_command,
)
from mirror_core.sync.fence_command_runner import (
    CommandNotReconciled,
    open_destination,
    reconcile_command,
    write_or_reconcile,
)
from tests.support import fence_commands
from tests.support.fence_commands import MIRROR, TOPICS, acted, called, linked
from tests.support.fence_states import OWED, STANDS
from tests.support.memory_state import journal_of
from tests.support.mirror_views import RUN
from tests.support.sentences import format_sentence

link = fence_commands.link


@pytest.fixture(autouse=True)
def nobodys_destination(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirror_core.sync.fence_command_runner.read_source_state", lambda link: ())


def where(link: MirrorLink, cluster: str = "east") -> FenceCommandTarget:
    return build_command_target(link, ClusterName(cluster), "r", TOPICS)


def test_a_command_is_told_what_it_is_about(link: MirrorLink) -> None:
    folder = link.config.path.parent
    assert run_fence_command(where(link))
    assert run_unfence_command(where(link, "west"))
    assert (folder / "called").read_text() == "fence east E m r\nunfence west W m r\n"
    assert (folder / "topics").read_text() == "a.b\norders\n"


def test_a_command_inherits_no_secret_and_gets_what_its_entry_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAST_PASSWORD", "hush-4711")
    monkeypatch.setenv("IAM_TOKEN", "token-1")
    link = linked(tmp_path, ends="env > environment", environment={"CLOUD_TOKEN": "${env:IAM_TOKEN}"})
    assert run_fence_command(where(link))
    environment = (tmp_path / "environment").read_text()
    assert "hush-4711" not in environment
    assert "IAM_TOKEN" not in environment
    assert "CLOUD_TOKEN=token-1" in environment.splitlines()


def test_a_reference_that_cannot_be_followed_is_named_and_not_retried(tmp_path: Path) -> None:
    link = linked(tmp_path, environment={"CLOUD_TOKEN": "${env:NO_TOKEN}"})
    problem = "environment.CLOUD_TOKEN: environment variable NO_TOKEN is not set"
    assert next(warn_unusable_fence_commands(link)) == Finding(
        "fence_command_unresolved", "east", hook="fence_command", reason=problem
    )
    with pytest.raises(FenceCommandFailed, match=rf"failed after 1 attempt: {problem}"):
        run_fence_command(where(link))
    assert called(link) == []


def test_a_cluster_without_a_command_is_closed_by_nothing(link: MirrorLink) -> None:
    bare = replace(link.source, ruling=link.source.ruling.without_commands())
    assert not run_fence_command(replace(where(link), cluster=bare))
    assert not run_unfence_command(replace(where(link), cluster=bare))
    assert called(link) == []


def test_a_drill_closes_and_opens_no_cluster(link: MirrorLink) -> None:
    """Its one topic is ours, and a command may close the whole cluster to applications."""
    drilled = make_mirror_link(link.config, replace(MIRROR, name=MirrorName("drill.m")))
    assert drilled.source.ruling.is_foreign
    assert not run_fence_command(build_command_target(drilled, ClusterName("east"), "r", TOPICS))


@pytest.mark.parametrize(("once", "tries"), [(False, 3), (True, 1)])
def test_one_that_fails_is_called_again_then_named_without_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, once: bool, tries: int
) -> None:
    monkeypatch.setattr(fence_command, "compute_retry_pause_s", lambda tries: 0.0)
    link, before = linked(tmp_path, ends="exit 3"), list[str]()
    with pytest.raises(
        FenceCommandFailed, match=rf"east: fence_command \(./gate\) failed after {tries} attempts?: exit code 3"
    ) as caught:
        run_fence_command(where(link), once=once, before_try=lambda: before.append("asked"))
    assert len(called(link)) == len(before) == tries
    assert "hush" not in str(caught.value)


def test_who_has_lost_the_mirror_calls_nothing(link: MirrorLink) -> None:
    def lost() -> None:
        raise LostOwnership("another has it")

    with pytest.raises(LostOwnership):
        run_fence_command(where(link), before_try=lost)
    assert called(link) == []


def test_a_run_writes_down_that_it_closes_before_it_does(tmp_path: Path) -> None:
    """So an abort finds it, also after a crash in the middle of it; and a person, when the destination dies."""
    link = linked(tmp_path, ends="exit 1", retries=0)
    acts = acted(link, tmp_path)
    with pytest.raises(FenceCommandFailed):
        CommandFence(acts, "fence", LiftFile(acts))(TOPICS)
    assert has_closed_source(acts.journal.log.state, acts.journal.run)
    fence = read_fence_file(tmp_path / "run-r" / "unfence-r.json")
    assert fence.command
    assert set(fence.topics) == set(TOPICS)
    assert not fence.denials, "no ACL was made"


def test_the_file_is_there_before_a_watcher_closes_a_lost_source(
    link: MirrorLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UnplannedSteps, "scope", SimpleNamespace(topic_names=TOPICS, promoted=[], left_behind=[]))
    monkeypatch.setattr(UnplannedSteps, "_needs_confirmation", lambda *_, **__: False)
    monkeypatch.setattr(unplanned_steps, "apply_fence", lambda *_: {"fence": "pending"})
    acts = acted(link, tmp_path)
    UnplannedSteps(link, acts.services, cast("Any", acts.journal.log), acts.journal).stand()
    fence = read_fence_file(tmp_path / "run-r" / "unfence-r.json")
    assert (fence.command, set(fence.topics)) == (True, set(TOPICS))
    assert not acts.journal.log.state.ledger, "no ACL is intended there"

    path = tmp_path / "run-r" / "unfence-r.json"
    mark_lifted(path, replace(fence, lifted_ms=5), "advice")
    with pytest.raises(Refused, match="was lifted by its file"):
        UnplannedSteps(link, acts.services, cast("Any", acts.journal.log), acts.journal).stand()
    assert read_fence_file(path).lifted_ms == 5, "who resumes it once more is told, too"


def test_a_run_that_closed_nothing_is_known_as_such(link: MirrorLink) -> None:
    journal = journal_of("r", "fence")
    other = journal_of("other", "fence")
    other.save_checkpoint("fence", ClusterClosed(cluster="east"))
    assert not has_closed_source(journal.log.state, journal.run)
    assert not has_closed_source(other.log.state, replace(other.run, id="r"))
    assert has_closed_source(other.log.state, other.run)


UNFENCE = replace(OWED, action=FenceAction.LIFT)
STOPPED = replace(MIRROR, desired=DesiredState.STOPPED)
MIRRORS = {MIRROR.name: MIRROR}
FAILBACK = replace(RUN, plan=replace(RUN.plan, kind=RunKind.FAILBACK))


@pytest.mark.parametrize(
    ("mirror", "debt", "run", "begun", "shut_"),
    [
        (STOPPED, OWED, None, False, True),
        (STOPPED, STANDS, None, False, True),
        (STOPPED, STANDS, FAILBACK, False, True),
        (MIRROR, OWED, RUN, False, True),
        (MIRROR, None, RUN, True, True),
        (STOPPED, None, RUN, True, True),
        (MIRROR, None, RUN, False, False),
        (MIRROR, None, None, False, False),
        (replace(MIRROR, desired=DesiredState.PAUSED), None, None, False, False),
        (MIRROR, UNFENCE, None, False, False),
        (STOPPED, UNFENCE, None, False, False),
        (MIRROR, UNFENCE, RUN, True, True),
        (MIRROR, None, replace(RUN, state=RunState.ABORTING), True, False),
        (MIRROR, UNFENCE, replace(RUN, state=RunState.ABORTING), True, False),
        (STOPPED, None, FAILBACK, False, None),
        # The way home beside a mirror that is protected again, and one that was deleted behind a failover.
        (STOPPED, None, None, False, None),
        (None, None, None, False, None),
    ],
)
def test_the_state_says_whether_the_source_is_to_be_closed(
    mirror: Mirror | None, debt: PendingFence | None, run: Run | None, begun: bool, shut_: bool | None
) -> None:
    assert must_stay_fenced(mirror, debt, run, is_command_begun=begun) is shut_


def lost() -> None:
    raise LostOwnership("another has it")


@pytest.mark.parametrize(
    ("debts", "expected"), [({}, ["unfence"]), ({OWED.mirror: OWED}, ["fence"]), ({OWED.mirror: UNFENCE}, ["unfence"])]
)
def test_who_called_too_late_makes_it_as_the_new_owner_wants_it(
    link: MirrorLink, monkeypatch: pytest.MonkeyPatch, debts: dict[MirrorName, PendingFence], expected: list[str]
) -> None:
    monkeypatch.setattr(
        fence_command_runner,
        "read_complete_state",
        lambda cluster: State(mirrors=dict(MIRRORS), pending_fences=dict(debts)),
    )
    with pytest.raises(LostOwnership):
        write_or_reconcile(link, where(link), lost)
    assert called(link) == expected


def test_it_looks_again_after_it_has_put_it_right(link: MirrorLink, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it opened the cluster another run has closed it."""
    closed = State(pending_fences={OWED.mirror: OWED})
    states = iter([State(mirrors=dict(MIRRORS)), closed, closed])
    monkeypatch.setattr(fence_command_runner, "read_complete_state", lambda cluster: next(states))
    assert reconcile_command(link, where(link), is_closed=True)
    assert called(link) == ["unfence", "fence"]


def test_who_closed_in_time_changes_nothing_more(link: MirrorLink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        fence_command_runner, "read_complete_state", lambda cluster: State(pending_fences={OWED.mirror: OWED})
    )
    assert reconcile_command(link, where(link), is_closed=True)
    assert called(link) == []


def test_of_a_way_home_people_are_told(link: MirrorLink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        fence_command_runner, "read_complete_state", lambda cluster: State(runs={FAILBACK.id: FAILBACK})
    )
    with pytest.raises(FenceCommandFailed, match="was called late, while a failback is under way"):
        reconcile_command(link, where(link))
    assert called(link) == []


@pytest.mark.parametrize("mirrors", [{}, {MIRROR.name: STOPPED}])
def test_behind_a_way_home_and_without_the_mirror_nothing_is_called_and_people_are_told(
    link: MirrorLink, monkeypatch: pytest.MonkeyPatch, mirrors: dict[MirrorName, Mirror]
) -> None:
    """The source may be a mirror's destination by now, or applications have moved away from it for good."""
    monkeypatch.setattr(fence_command_runner, "read_complete_state", lambda cluster: State(mirrors=dict(mirrors)))
    with pytest.raises(CommandNotReconciled, match=format_sentence("run_lost_mirror_pattern")):
        write_or_reconcile(link, where(link), lost)
    assert called(link) == []


def test_a_folder_that_takes_no_file_is_a_try_that_failed(link: MirrorLink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent/here")
    with pytest.raises(FenceCommandFailed, match="failed after 3 attempts: the file with its topics"):
        run_unfence_command(where(link))
    assert called(link) == []


@pytest.mark.parametrize("ends", ["exit 0", '[ "$MIRRORBOOK_ACTION" = fence ]'])
@pytest.mark.parametrize(("desired", "expected"), [(DesiredState.STARTED, ["fence"]), (DesiredState.STOPPED, [])])
def test_a_destination_that_was_opened_too_late_is_closed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, desired: DesiredState, expected: list[str], ends: str
) -> None:
    """Also by a try that failed, and may have opened it all the same."""
    link, ours = linked(tmp_path, ends=ends), iter([True])
    state = State(mirrors={MIRROR.name: replace(MIRROR, desired=desired)})
    monkeypatch.setattr(fence_command_runner, "read_complete_state", lambda cluster: state)
    monkeypatch.setattr(fence_command, "compute_retry_pause_s", lambda tries: 0.0)
    with pytest.raises(LostOwnership):
        open_destination(link, where(link, "west"), lambda: None if next(ours, False) else lost())
    assert called(link) == ["unfence", *expected]


def test_without_commands_nobody_asks_for_the_state_again(link: MirrorLink, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: Callable[[object], State] = lambda cluster: pytest.fail("was read")  # noqa: E731
    monkeypatch.setattr(fence_command_runner, "read_complete_state", reads)
    bare = replace(link.source, ruling=link.source.ruling.without_commands())
    with pytest.raises(LostOwnership):
        write_or_reconcile(link, replace(where(link), cluster=bare), lost)
