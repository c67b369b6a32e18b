"""What the demonstration shows fits into 80 columns, and a file holds nothing that moves a cursor."""

from __future__ import annotations

import io
import re
import shlex

import pytest

from mirrorbook_tools.demo import terminal_screen
from mirrorbook_tools.demo.scenario import in_short
from mirrorbook_tools.demo.scenario_runner import ABOUT
from mirrorbook_tools.demo.terminal_screen import Counters, Screen, folded, typed

COUNTERS = Counters(written=12_345, read=12_300, behind=1_234, silent_s=123.4)
LONG = "mirrorbook mirror create orders --source east --destination west --topics orders --yes --config /a/b"
PLAN = {
    "hash": "304d61cbac78",
    "steps": [{"name": "settle", "reversible": True}, {"name": "promote", "reversible": False}],
    "figures": {"lost_offsets": {"text": "6 offsets"}, "source_seen_s": {"text": "10.2 s ago"}},
    "groups": {"orders-shop": {"read_again_most": {"text": "12 offsets"}}},
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def played(out: io.StringIO) -> str:
    with Screen(out) as shown:
        shown.paragraph(ABOUT)
        shown.act("1  Two clusters")
        shown.command(LONG)
        for line in in_short(PLAN):
            shown.say(line)
        shown.counters(COUNTERS)
        shown.say("\x1b[2J of a broker")
    return out.getvalue()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal_screen, "PLAIN_S", -1.0)


def test_a_file_gets_lines_of_80_columns_and_nothing_that_moves_a_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # of a user who likes colours
    monkeypatch.setenv("COLUMNS", "30")
    said = played(io.StringIO())

    assert not re.search(r"[^\n\x20-\x7e]", said)
    assert max(map(len, said.splitlines())) <= 80
    assert COUNTERS.line() in said
    assert "no way back but a failback from promote on" in " ".join(said.split())


def test_a_terminal_gets_a_living_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    said = played(Terminal())

    assert "\x1b[?25l" in said
    assert said.rstrip("\r\n").endswith("\x1b[2K") or "\x1b[?25h" in said, "the cursor is shown again"
    assert "\\x1b[2J of a broker" in said


def test_a_command_that_is_folded_can_be_copied() -> None:
    lines = typed(LONG, "  ")

    assert len(lines) > 1
    copied = "\n".join(lines).replace("\\\n", " ").strip()
    assert shlex.split(copied.removeprefix("$ ")) == shlex.split(LONG)


def test_a_long_path_stays_whole() -> None:
    path = "/" + "x" * 100 + "/mirrorbook-demo"
    assert any(path in line for line in folded(f"logs are in {path} now", "  1.0 s  "))


def test_counters_leave_out_what_is_not_known() -> None:
    assert COUNTERS.line() == "written 12,345  read 12,300  behind 1,234  without writes 123.4 s"
    assert Counters(written=1, read=0, behind=None, silent_s=None).line() == "written 1  read 0"
