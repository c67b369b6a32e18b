"""A cluster that ACLs do not rule is closed and opened by commands of the user's: what they are told, and who may."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from mirror_core.decide.shutting import keeps_shut
from mirror_core.evidence.fence_file import mark_lifted, read
from mirror_core.kafka.config import load_config
from mirror_core.model.errors import LostOwnership, Refused
from mirror_core.model.mirror import Desired, Mirror
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.run import Run, RunKind, RunState
from mirror_core.model.standing import Debt, Owed
from mirror_core.runbook import lost_steps
from mirror_core.runbook.acts import Acts
from mirror_core.runbook.lost_steps import LostSteps
from mirror_core.runbook.shutting import ByCommand
from mirror_core.runbook.unfencing import LiftFile
from mirror_core.state.journal import Journal
from mirror_core.state.link import Link, link_of
from mirror_core.state.records import State
from mirror_core.sync import closing_commands, shutting
from mirror_core.sync.closing_commands import Closable, CommandFailed, closable, open_again, shut
from mirror_core.sync.closings import Shut, has_shut
from mirror_core.sync.shutting import NotPutRight, destination_opened_through, owned_after, put_right
from tests.memory import journal_of
from tests.unit.test_decide_standing import OWED, STANDS
from tests.unit.test_decide_verbs import RUN

MIRROR = Mirror(
    name=MirrorName("m"), source=ClusterName("east"), destination=ClusterName("west"), source_id="E",
    destination_id="W", topics=("orders",), producer_id=1 << 62, desired=Desired.STARTED, created_ms=1,
)  # fmt: skip
TOPICS = ("orders", "a.b")


@pytest.fixture(autouse=True)
def nobodys_destination(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirror_core.sync.kept_closed.state_of_source", lambda link: ())


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Link:
    """Each of both clusters has a program that writes down what it was told, in a folder of its own."""
    monkeypatch.setattr(closing_commands, "pause_s", lambda tries: 0.0)
    return linked(tmp_path)


def linked(folder: Path, mirror: Mirror = MIRROR, ends: str = "exit 0", retries: int = 2) -> Link:
    program = folder / "gate"
    told = '"$MIRRORBOOK_ACTION $MIRRORBOOK_CLUSTER $MIRRORBOOK_CLUSTER_ID $MIRRORBOOK_MIRROR $MIRRORBOOK_RUN"'
    program.write_text(
        f'#!/bin/sh\necho {told} >> called\ncat "$MIRRORBOOK_TOPICS_FILE" > topics\necho hush-hush\n{ends}\n'
    )
    program.chmod(0o700)
    command = {"command": ["./gate"], "retries": retries}
    side = {"authorizer": "foreign", "fence_command": command, "unfence_command": command}
    path = folder / "mirrorbook.yaml"
    clusters = {name: {"bootstrap.servers": f"{name}:1", **side} for name in ("east", "west")}
    path.write_text(yaml.safe_dump({"clusters": clusters}))
    return link_of(load_config(path), mirror)


def where(link: Link, cluster: str = "east") -> Closable:
    return closable(link, ClusterName(cluster), "r", TOPICS)


def called(link: Link) -> list[str]:
    path = link.config.path.parent / "called"
    return [line.split(" ")[0] for line in path.read_text().splitlines()] if path.exists() else []


def test_a_command_is_told_what_it_is_about(link: Link) -> None:
    folder = link.config.path.parent
    assert shut(where(link))
    assert open_again(where(link, "west"))
    assert (folder / "called").read_text() == "fence east E m r\nunfence west W m r\n"
    assert (folder / "topics").read_text() == "a.b\norders\n"


def test_a_cluster_without_a_command_is_closed_by_nothing(link: Link) -> None:
    bare = replace(link.source, ruling=link.source.ruling.without_commands())
    assert not shut(replace(where(link), cluster=bare))
    assert not open_again(replace(where(link), cluster=bare))
    assert called(link) == []


def test_a_drill_closes_and_opens_no_cluster(link: Link) -> None:
    """Its one topic is ours, and a command may close the whole cluster to applications."""
    drilled = link_of(link.config, replace(MIRROR, name=MirrorName("drill.m")))
    assert drilled.source.ruling.foreign
    assert not shut(closable(drilled, ClusterName("east"), "r", TOPICS))


@pytest.mark.parametrize(("once", "tries"), [(False, 3), (True, 1)])
def test_one_that_fails_is_called_again_then_named_without_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, once: bool, tries: int
) -> None:
    monkeypatch.setattr(closing_commands, "pause_s", lambda tries: 0.0)
    link, before = linked(tmp_path, ends="exit 3"), list[str]()
    with pytest.raises(
        CommandFailed, match=rf"east: fence_command \(./gate\) failed after {tries} time\(s\): exit code 3"
    ) as caught:
        shut(where(link), once=once, before=lambda: before.append("asked"))
    assert len(called(link)) == len(before) == tries
    assert "hush" not in str(caught.value)


def test_who_has_lost_the_mirror_calls_nothing(link: Link) -> None:
    def lost() -> None:
        raise LostOwnership("another has it")

    with pytest.raises(LostOwnership):
        shut(where(link), before=lost)
    assert called(link) == []


def test_a_run_writes_down_that_it_closes_before_it_does(tmp_path: Path) -> None:
    """So an abort finds it, also after a crash in the middle of it; and a person, when the destination dies."""
    link = linked(tmp_path, ends="exit 1", retries=0)
    acts = acted(link, tmp_path)
    with pytest.raises(CommandFailed):
        ByCommand(acts, "fence", LiftFile(acts))(TOPICS)
    assert has_shut(acts.journal.log.state, acts.journal.run)
    fence = read(tmp_path / "run-r" / "unfence-r.json")
    assert fence.command
    assert set(fence.topics) == set(TOPICS)
    assert not fence.denials, "no ACL was made"


def test_the_file_is_there_before_a_watcher_closes_a_lost_source(
    link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LostSteps, "scope", SimpleNamespace(names=TOPICS, promoted=[], left=[]))
    monkeypatch.setattr(LostSteps, "_needs_word", lambda *_, **__: False)
    monkeypatch.setattr(lost_steps, "paid", lambda *_: {"fence": "pending"})
    acts = acted(link, tmp_path)
    LostSteps(link, acts.services, cast("Any", acts.journal.log), acts.journal).stand()
    fence = read(tmp_path / "run-r" / "unfence-r.json")
    assert (fence.command, set(fence.topics)) == (True, set(TOPICS))
    assert not acts.journal.log.state.ledger, "no ACL is intended there"

    path = tmp_path / "run-r" / "unfence-r.json"
    mark_lifted(path, replace(fence, lifted_ms=5), "advice")
    with pytest.raises(Refused, match="was lifted by its file"):
        LostSteps(link, acts.services, cast("Any", acts.journal.log), acts.journal).stand()
    assert read(path).lifted_ms == 5, "who resumes it once more is told, too"


def test_a_run_that_closed_nothing_is_known_as_such(link: Link) -> None:
    journal = journal_of("r", "fence")
    other = journal_of("other", "fence")
    other.keep("fence", Shut(cluster="east"))
    assert not has_shut(journal.log.state, journal.run)
    assert not has_shut(other.log.state, replace(other.run, id="r"))
    assert has_shut(other.log.state, other.run)


def acted(link: Link, folder: Path, journal: Journal | None = None) -> Acts:
    nothing = cast("Any", None)
    services = cast("Any", SimpleNamespace(evidence_dir=folder))
    return Acts(link, services, nothing, journal or journal_of("r", "fence"))


UNFENCE = replace(OWED, owed=Owed.UNFENCE)
STOPPED = replace(MIRROR, desired=Desired.STOPPED)
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
        (replace(MIRROR, desired=Desired.PAUSED), None, None, False, False),
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
    mirror: Mirror | None, debt: Debt | None, run: Run | None, begun: bool, shut_: bool | None
) -> None:
    assert keeps_shut(mirror, debt, run, begun=begun) is shut_


def lost() -> None:
    raise LostOwnership("another has it")


@pytest.mark.parametrize(
    ("debts", "expected"), [({}, ["unfence"]), ({OWED.mirror: OWED}, ["fence"]), ({OWED.mirror: UNFENCE}, ["unfence"])]
)
def test_who_called_too_late_makes_it_as_the_new_owner_wants_it(
    link: Link, monkeypatch: pytest.MonkeyPatch, debts: dict[MirrorName, Debt], expected: list[str]
) -> None:
    monkeypatch.setattr(shutting, "read_whole", lambda cluster: State(mirrors=dict(MIRRORS), debts=dict(debts)))
    with pytest.raises(LostOwnership):
        owned_after(link, where(link), lost)
    assert called(link) == expected


def test_it_looks_again_after_it_has_put_it_right(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it opened the cluster another run has closed it."""
    closed = State(debts={OWED.mirror: OWED})
    states = iter([State(mirrors=dict(MIRRORS)), closed, closed])
    monkeypatch.setattr(shutting, "read_whole", lambda cluster: next(states))
    assert put_right(link, where(link), done=True)
    assert called(link) == ["unfence", "fence"]


def test_who_closed_in_time_changes_nothing_more(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutting, "read_whole", lambda cluster: State(debts={OWED.mirror: OWED}))
    assert put_right(link, where(link), done=True)
    assert called(link) == []


def test_of_a_way_home_people_are_told(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutting, "read_whole", lambda cluster: State(runs={FAILBACK.id: FAILBACK}))
    with pytest.raises(CommandFailed, match="was called late, while a failback is under way"):
        put_right(link, where(link))
    assert called(link) == []


@pytest.mark.parametrize("mirrors", [{}, {MIRROR.name: STOPPED}])
def test_behind_a_way_home_and_without_the_mirror_nothing_is_called_and_people_are_told(
    link: Link, monkeypatch: pytest.MonkeyPatch, mirrors: dict[MirrorName, Mirror]
) -> None:
    """The source may be a mirror's destination by now, or applications have moved away from it for good."""
    monkeypatch.setattr(shutting, "read_whole", lambda cluster: State(mirrors=dict(mirrors)))
    with pytest.raises(NotPutRight, match=r"run r has lost mirror m while .* see to it by its own means"):
        owned_after(link, where(link), lost)
    assert called(link) == []


def test_a_folder_that_takes_no_file_is_a_try_that_failed(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent/here")
    with pytest.raises(CommandFailed, match=r"failed after 3 time\(s\): the file with its topics cannot be written"):
        open_again(where(link))
    assert called(link) == []


@pytest.mark.parametrize("ends", ["exit 0", '[ "$MIRRORBOOK_ACTION" = fence ]'])
@pytest.mark.parametrize(("desired", "expected"), [(Desired.STARTED, ["fence"]), (Desired.STOPPED, [])])
def test_a_destination_that_was_opened_too_late_is_closed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, desired: Desired, expected: list[str], ends: str
) -> None:
    """Also by a try that failed, and may have opened it all the same."""
    link, ours = linked(tmp_path, ends=ends), iter([True])
    state = State(mirrors={MIRROR.name: replace(MIRROR, desired=desired)})
    monkeypatch.setattr(shutting, "read_whole", lambda cluster: state)
    monkeypatch.setattr(closing_commands, "pause_s", lambda tries: 0.0)
    with pytest.raises(LostOwnership):
        destination_opened_through(link, where(link, "west"), lambda: None if next(ours, False) else lost())
    assert called(link) == ["unfence", *expected]


def test_without_commands_nobody_asks_for_the_state_again(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: Callable[[object], State] = lambda cluster: pytest.fail("was read")  # noqa: E731
    monkeypatch.setattr(shutting, "read_whole", reads)
    bare = replace(link.source, ruling=link.source.ruling.without_commands())
    with pytest.raises(LostOwnership):
        owned_after(link, replace(where(link), cluster=bare), lost)
