"""What commands print: names that look like markup, or that a terminal would obey, are shown whole."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from mirror_core.cli.command_options import print_facts, print_json
from mirror_core.cli.output import print_line
from mirror_core.cli.tables import print_table
from mirror_core.model.json_documents import JsonDocument
from tests.support.sentences import format_sentence

NAMES = ("a[/b]", "[red]c", "\x1b[2Jd", "e\u202ef", "\x9bg", ":smile:", "[link=https://evil.example]h")
SHOWN = ("a[/b]", "[red]c", "\\x1b[2Jd", "e\\u202ef", "\\x9bg", ":smile:", "[link=https://evil.example]h")


class Groups(JsonDocument, frozen=True, kw_only=True):
    groups: tuple[str, ...]


def said(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().out
    assert not [char for char in text if not char.isprintable() and char != "\n"]
    return text


@pytest.mark.parametrize(("name", "shown"), list(zip(NAMES, SHOWN, strict=True)))
def test_a_name_is_shown_whole_wherever_it_stands(name: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_table(f"Groups of {name}", ["group", "why"], [[name, None], ["other", f"like {name}"]])
    table = said(capsys)
    assert table.count(shown) == 3
    print_facts({name: name})
    print_line(f"group {name}:\n  - {name}")
    assert said(capsys) == f"{shown}: {shown}\ngroup {shown}:\n  - {shown}\n"


def test_json_gives_names_back_as_they_were(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(Groups(groups=NAMES))
    assert json.loads(said(capsys)) == {"groups": list(NAMES)}


def test_what_a_row_is_named_by_is_in_one_piece(capsys: pytest.CaptureFixture[str]) -> None:
    long = "a-mirror-with-rather-a-long-name-failover-20261123T185446-8a22"
    crowd = ["a crowd of words beside it " * 3] * 6
    print_table("Runs", ["id", *"abcdef"], [[long, *crowd], ["n" * 249, *crowd]])
    out = capsys.readouterr().out
    assert long in out
    assert "crowd" in out


RUN = """
import sys
from mirror_core.cli.command_options import print_facts
from mirror_core.cli.output import print_line_or_continue
print_line_or_continue("fence ...")
sys.stdin.readline()  # whoever listened has gone
for step in ("drain", "promote"):
    print_line_or_continue(f"{step} ...")
print_facts({"state": "DONE"})
"""


def test_a_run_goes_on_when_nobody_reads_what_it_says_any_more() -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "fence ...\n"
    run.stdout.close()
    run.stdout = None
    _, err = run.communicate("\n", timeout=60)
    first, *rest = err.splitlines()
    assert first == format_sentence("standard_output_broken")
    assert (run.returncode, rest) == (0, ["drain ...", "promote ...", "state: DONE"])


def test_a_run_goes_on_when_its_disk_is_full_and_nobody_listens_at_all() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    with full.open("w", encoding="utf-8") as out:
        run = subprocess.run([sys.executable, "-c", RUN], input="\n", stdout=out, stderr=out, text=True, check=False)
    assert run.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_where_standard_error_takes_nothing_results_still_come() -> None:
    code = (
        "from mirror_core.cli.output import print_line_or_continue as line; line('fence ...', err=True); line('result')"
    )
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=full, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "result\n")


def test_several_mirrors_that_find_it_closed_at_once_are_all_heard() -> None:
    code = """
import sys, threading
from mirror_core.cli.output import print_line_or_continue
sys.stdin.readline()
together = threading.Barrier(8)
def say(number):
    together.wait()
    print_line_or_continue(f"mirror {number}")
threads = [threading.Thread(target=say, args=(n,)) for n in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
"""
    run = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    run.stdout.close()
    run.stdout = None
    _, err = run.communicate("\n", timeout=60)
    said = " ".join(err.split())
    assert sorted(re.findall(r"mirror \d", said)) == [f"mirror {n}" for n in range(8)]
    why = format_sentence("standard_output_broken")
    assert why in " ".join(re.sub(r"mirror \d", "", said).split())


ASK = """
from mirror_core.cli.command_options import require_confirmation
from mirror_core.cli.tables import print_table
input("Run plan? ")
require_confirmation("Fence now?", False)
"""


def test_what_was_typed_before_a_question_is_no_answer_to_it() -> None:
    ours, its = pty.openpty()
    asking = subprocess.Popen(
        [sys.executable, "-c", ASK], stdin=its, stdout=its, stderr=subprocess.PIPE, start_new_session=True
    )
    os.close(its)
    try:
        shown = b""
        os.write(ours, b"y\ny\n")  # two answers, where one was asked for
        while b"Fence now? [y/N]:" not in shown:
            assert select.select([ours], [], [], 60)[0], shown
            shown += os.read(ours, 4096)
        assert asking.poll() is None
        os.write(ours, b"n\n")
        _, err = asking.communicate(timeout=60)
    finally:
        asking.kill()
        asking.wait()
        os.close(ours)
    assert b"cancelled" in err


def show_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int, *table: Any
) -> list[str]:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    print_table(*table)
    return click.unstyle(capsys.readouterr().out).splitlines()


PARTITION_COLUMNS = ("partition", "state", "position", "source end", "lag", "proved", "LMO", "kind", "reason")
TOPIC = "team-payments.orders.customer-events.v2-11"
PARTITION = (TOPIC, "FAILED", 1_234_567, "unknown", None, 7, "", "diverged", "offset 7 differs, as in __mirrorbook_x")


def test_a_narrow_terminal_folds_a_table_and_loses_no_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = show_table(monkeypatch, capsys, 80, "Partitions", PARTITION_COLUMNS, [PARTITION])
    assert lines == [
        "Partitions",
        TOPIC,
        "  state:      FAILED",
        "  position:   1,234,567",
        "  source end: unknown",
        "  proved:     7",
        "  kind:       diverged",
        "  reason:     offset 7 differs, as in __mirrorbook_x",
        "",
    ]


@pytest.mark.parametrize("columns", [80, 100, 120, 200])
def test_a_table_breaks_no_command_and_no_name_and_fits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    command = "`mirrorbook failover resume orders`"
    remedy = format_sentence("ended_process_conducts", command)
    rows = [("refusal", TOPIC, remedy), ("warning", "t-0", "a long sentence of a warning " * 4)]
    lines = show_table(monkeypatch, capsys, columns, "Points", ("weight", "what", "what to do"), rows)
    text = "\n".join(lines)
    assert command in text
    assert TOPIC in text
    assert max(map(len, lines)) <= columns
    assert not any(line.endswith(" ") for line in lines)


def test_sentences_are_a_list(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = show_table(monkeypatch, capsys, 80, "Also", ("what",), [("words of a sentence " * 6,)])
    assert [line[:2] for line in lines] == ["Al", "- ", "  ", ""]
    right = "ALLOW WRITE on TOPIC prefixed 'orders' for User:CN=orders-app,OU=payments,O=example,C=de from *"
    lines = show_table(monkeypatch, capsys, 80, "Rights", ("right",), [(right,)])
    assert " ".join(line.strip("- ") for line in lines[1:]).strip() == right
    assert any("User:CN=orders-app,OU=payments,O=example,C=de" in line for line in lines)


def test_a_table_in_a_pipe_is_one_line_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("Partitions", PARTITION_COLUMNS, [PARTITION, ("t-0", *PARTITION[1:])])
    title, header, *rows = capsys.readouterr().out.splitlines()
    assert (title, header.split()) == (
        "Partitions",
        ["partition", "state", "position", "source", "end", "lag", "proved", "LMO", "kind", "reason"],
    )
    assert [re.split("  +", row)[:7] for row in rows] == [
        [name, "FAILED", "1234567", "unknown", "-", "7", "-"] for name in (TOPIC, "t-0")
    ]
    print_table("Runs", PARTITION_COLUMNS, [])
    assert capsys.readouterr().out == "Runs: none\n"


def test_a_terminal_breaks_no_command_and_no_word_of_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    command = "mirrorbook cluster unfence east --from /var/lib/mirrorbook/evidence/run-x/unfence-east.json"
    print_line(
        f"  - nobody conducts it, and east is fenced: `mirrorbook failover resume orders` goes on\n    {command}"
    )
    assert capsys.readouterr().out.splitlines() == [
        "  - nobody conducts it, and east is fenced: `mirrorbook failover resume orders`",
        "    goes on",
        f"    {command}",
    ]
