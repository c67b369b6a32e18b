"""What is lost is said above the question, and the mirror's name confirms it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import typer

from mirror_core.cli import confirm
from mirror_core.cli.confirm import CommandOutput, confirm_command
from mirror_core.decide.command_rules import MirrorCommand
from mirror_core.mirrors import mirror_commands
from mirror_core.model.errors import Refused
from mirror_core.model.findings import Finding
from mirror_core.state.state_records import State
from tests.support.cluster_names import LINK


@pytest.mark.parametrize(("answer", "is_confirmed"), [("y", False), ("", False), (LINK.mirror.name, True)])
def test_a_mirror_is_forgotten_only_by_its_name(
    monkeypatch: pytest.MonkeyPatch, answer: str, is_confirmed: bool
) -> None:
    asked = list[str]()

    def prompt(question: str, **_: object) -> str:
        asked.append(" ".join(question.split()))
        return answer

    intent = SimpleNamespace(lines=("delete mirror",), raise_refusal=lambda: None)
    monkeypatch.setattr(mirror_commands, "preview", lambda *_: intent)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(typer, "prompt", prompt)
    output = CommandOutput(LINK.mirror.name, MirrorCommand.DELETE, as_json=False)
    if is_confirmed:
        assert confirm_command(LINK, MirrorCommand.DELETE, output, dry_run=False, yes=False)
    else:
        with pytest.raises(Refused, match="cancelled"):
            confirm_command(LINK, MirrorCommand.DELETE, output, dry_run=False, yes=False)
    assert asked[0].startswith(str(Finding("mirror_to_forget", LINK.mirror.name, destination=LINK.mirror.destination)))


@pytest.mark.parametrize(("lease", "when"), [(object(), "next epoch"), (None, "no data plane is seen to run")])
def test_a_data_plane_is_spoken_of_as_it_is_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lease: object, when: str
) -> None:
    monkeypatch.setattr(confirm, "observe_live_lease", lambda *asked: lease)
    CommandOutput(LINK.mirror.name, "pause", as_json=False).print_change(LINK, State(), "PAUSED")
    assert capsys.readouterr().out.endswith(f"{when}\n")
