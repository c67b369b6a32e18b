"""The gate on tests that were seeded: one that fails every second time, one that loses a record once, and the like."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tests.gate.__main__ as gate
from tests.gate import running
from tests.gate.events import Failure, events_in
from tests.gate.explain import explain, flaky_lines
from tests.gate.running import NICE
from tests.gate.stages import Stage
from tests.gate.verdict import MOST_AGAIN, is_green

REPOSITORY = Path(__file__).parents[3]
FINE = "def test_fine(): pass\n"
EVERY_SECOND_TIME = """
from pathlib import Path
def test_every_second_time():
    seen = Path("seen")
    first = not seen.exists()
    seen.write_text("x")
    print("a command said: not yet")
    assert not first, "the broker did not answer"
"""
LOSES_ONCE = EVERY_SECOND_TIME.replace(
    "def test_every", "from tests.support.data_errors import about_data\n@about_data()\ndef test_every"
)
ALWAYS = 'def test_always(): assert 1 == 2, "never so"\n'
LEAVES_SOMETHING = """
import pytest
left = []
@pytest.fixture(scope="module", autouse=True)
def nothing_left():
    yield
    assert not left
def test_leaves(): left.append(1)
def test_last(): pass
"""


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """One whose folder a test fills, in a project of its own."""
    (tmp_path / "checks").mkdir()
    (tmp_path / "kept").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow: slow\n")
    monkeypatch.setattr(gate, "ROOT", tmp_path)
    monkeypatch.setattr(gate, "KEPT", tmp_path / "kept")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # each process starts in a quarter of the time
    monkeypatch.chdir(tmp_path)
    return Stage(name="s", folders=("checks",), marks="not slow", lanes=2)


def write(tmp_path: Path, **files: str) -> None:
    for name, text in files.items():
        (tmp_path / "checks" / f"test_{name}.py").write_text(text)


def test_one_that_fails_every_second_time_is_said_and_does_not_block(tmp_path: Path, stage: Stage) -> None:
    write(tmp_path, a=FINE, b=EVERY_SECOND_TIME)

    run, second, flaky = gate.judge(stage, {})

    assert run.counts == {"passed": 1, "failed": 1}
    assert second is not None
    assert second.counts == {"passed": 1}
    (line,) = flaky_lines(flaky)
    assert line.startswith(
        "FLAKY: checks/test_b.py::test_every_second_time passed in a second run. First failure (load "
    )
    assert "the broker did not answer" in "".join(flaky[0].error)


def test_a_record_that_was_lost_once_is_lost(tmp_path: Path, stage: Stage) -> None:
    write(tmp_path, a=FINE, b=LOSES_ONCE)

    run, second, flaky = gate.judge(stage, {})

    assert (second, flaky) == (None, ())
    assert not is_green(run)


def test_what_is_never_run_again(tmp_path: Path, stage: Stage) -> None:
    write(
        tmp_path,
        records='def test_a(): assert "Record(partition=0, offset=1)" == "Record(partition=0, offset=2)"\n',
        refusal="import pytest\ndef test_a():\n    with pytest.raises(OSError): pass\n",
        property="from hypothesis import given, strategies\n@given(strategies.none())\ndef test_a(n): assert n\n",
        other=ALWAYS,
    )

    run = gate.run_stage(stage, {})

    assert {failure.test.partition("::")[0]: failure.again for failure in run.failures} == {
        "checks/test_records.py": False,
        "checks/test_refusal.py": False,
        "checks/test_property.py": False,
        "checks/test_other.py": True,
    }

    write(tmp_path, imports="import no_such_module\n")
    run, second, _ = gate.judge(stage, {})
    assert second is None
    assert "No module named 'no_such_module'" in "\n".join(explain(run.failures, run.broken))


def test_what_runs_beside_the_others_leaves_them_the_cpus_and_is_never_run_again(tmp_path: Path, stage: Stage) -> None:
    (tmp_path / "quick").mkdir()
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    nice = "import os\ndef test_nice(): assert os.getpriority(os.PRIO_PROCESS, 0) == {}\n"
    write(tmp_path, nice=nice.format(ours))
    (tmp_path / "quick" / "test_nice.py").write_text(nice.format(min(19, ours + NICE)))
    assert is_green(gate.run_stage(replace(stage, beside=("quick",)), {}))

    (tmp_path / "quick" / "test_twice.py").write_text(EVERY_SECOND_TIME)
    run, second, flaky = gate.judge(replace(stage, beside=("quick",)), {})
    assert [failure.again for failure in run.failures] == [True]
    assert (second, flaky) == (None, ())


def test_one_that_fails_twice_is_red_and_so_are_more_than_a_few(tmp_path: Path, stage: Stage) -> None:
    write(tmp_path, a=ALWAYS)
    run, second, flaky = gate.judge(stage, {})
    assert second is not None
    assert (len(second.failures), flaky, is_green(run)) == (1, (), False)

    write(tmp_path, a=ALWAYS, b="".join(ALWAYS.replace("always", f"n{n}") for n in range(MOST_AGAIN)))
    _, second, _ = gate.judge(stage, {})
    assert second is None


def test_what_fails_behind_the_last_test_of_a_file_is_tried_with_the_whole_file(tmp_path: Path, stage: Stage) -> None:
    write(tmp_path, a=LEAVES_SOMETHING)

    run, second, flaky = gate.judge(stage, {})

    assert run.counts == {"passed": 1, "failed": 1}
    assert second is not None
    assert second.counts == {"passed": 1, "failed": 1}
    assert not flaky


def test_a_process_that_dies_is_red_and_says_which_test_it_was_at(tmp_path: Path, stage: Stage) -> None:
    write(tmp_path, a="import os\ndef test_dies(): os._exit(9)\ndef test_never(): pass\n", b=FINE)

    run, second, _ = gate.judge(stage, {})

    assert second is None
    assert "s-1: pytest ended with exit code 9" in run.broken[0]
    assert run.broken[-1] == "2 test(s) were collected and not run, such as checks/test_a.py::test_dies"


def test_without_any_test_nothing_is_green(tmp_path: Path, stage: Stage) -> None:
    write(tmp_path, a=f"import pytest\n@pytest.mark.slow\n{FINE}")

    run, _, _ = gate.judge(stage, {})

    assert not is_green(run)


def test_the_same_files_run_in_the_same_order_by_the_same_processes(tmp_path: Path, stage: Stage) -> None:
    write(tmp_path, **{name: FINE for name in "abcdefg"})
    table = {"checks/test_c.py": 9.0, "checks/test_e.py": 7.0}

    def ran() -> dict[str, list[str]]:
        for old in (tmp_path / "kept").glob("*.jsonl"):
            old.unlink()
        assert is_green(gate.run_stage(stage, table))
        return {path.name: [str(e) for e, _ in events_in(path)][:1] for path in (tmp_path / "kept").glob("*.jsonl")}

    first = ran()
    assert first == ran()
    assert first["s-1.1.jsonl"][0].startswith("Collected(tests=('checks/test_c.py::")


def test_the_whole_gate_ends_with_what_is_flaky_and_a_count(
    tmp_path: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, a=FINE, b=EVERY_SECOND_TIME)
    (tmp_path / "durations.json").write_text("{}")
    monkeypatch.setattr(gate, "DURATIONS", tmp_path / "durations.json")
    monkeypatch.setattr(gate, "GATE", (stage,))

    assert gate.main([]) == 0
    *_, flaky, count = capsys.readouterr().out.splitlines()
    assert flaky.startswith("FLAKY: checks/test_b.py")
    assert count == "2 passed, 0 failed, 0 skipped"
    assert set(json.loads((tmp_path / "kept" / "durations.json").read_text())["s"]) == {
        "checks/test_a.py",
        "checks/test_b.py",
    }

    write(tmp_path, b=ALWAYS)
    assert gate.main([]) == 1
    said = capsys.readouterr().out
    assert "FAILED: checks/test_b.py::test_always (load " in said
    assert "never so" in said
    assert said.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"

    assert gate.main(["weekly"]) == 2


def test_a_night_can_be_run_stage_by_stage(
    tmp_path: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, a=FINE)
    (tmp_path / "durations.json").write_text("{}")
    monkeypatch.setattr(gate, "DURATIONS", tmp_path / "durations.json")
    monkeypatch.setattr(gate, "NIGHTLY", (replace(stage, name="early"), replace(stage, name="late")))

    assert gate.main(["nightly", "late"]) == 0
    assert gate.main(["nightly"]) == 0
    assert gate.main(["nightly", "later"]) == 2
    told = [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if "process(es) at a time" in line]
    assert told == ["late", "early", "late"]


def test_a_process_in_which_no_test_ends_hangs(tmp_path: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = tmp_path / "begun"
    words = f"import pathlib, threading\ndef test_waits():\n pathlib.Path({str(begun)!r}).touch()\n"
    write(tmp_path, a=f"{FINE}{words} threading.Event().wait(300)\n", b=FINE)

    def silent_s() -> float:
        """Python may take longer to start than this test waits."""
        return time.time() - begun.stat().st_mtime if begun.exists() else 0.0

    monkeypatch.setattr(running, "SILENT_S", 10.0)
    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=silent_s, sleep=time.sleep))

    run, second, _ = gate.judge(stage, {})

    assert second is None
    assert "no test has ended for 10 s; the last one that did: checks/test_a.py::test_" in run.broken[0]


def test_an_explanation_fits_on_200_lines_and_names_every_failure() -> None:
    long = "\n".join(f"E   line {n}" for n in range(300))
    failures = [
        Failure(test=f"t{n}", phase="call", error=long, said=long, brokers=long, load="load 3", logs="/l", again=True)
        for n in range(60)
    ]
    for count in (1, 3, 12, 60):
        lines = explain(failures[:count], ["a process died\n" + long])
        assert len(lines) <= 200
        told = "\n".join(lines)
        assert all(f"t{n}" in told for n in range(count))
    assert "E   line 299" in "\n".join(explain(failures[:1])), "what was printed last"


@pytest.fixture
def gated(tmp_path: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Both sets of tests are this one."""
    (tmp_path / "durations.json").write_text("{}")
    monkeypatch.setattr(gate, "DURATIONS", tmp_path / "durations.json")
    monkeypatch.setattr(gate, "GATE", (stage,))
    monkeypatch.setattr(gate, "NIGHTLY", (stage,))
    return stage


@pytest.mark.parametrize(
    ("files", "which", "why"),
    [
        ({"a": f"import pytest\n@pytest.mark.slow\n{FINE}"}, [], "RED: s: no test has passed"),
        ({"a": f"import pytest\n@pytest.mark.slow\n{FINE}"}, ["nightly", "s"], "RED: s: no test has passed"),
        ({"a": "import pytest\ndef test_a(): pytest.skip('no java')\n"}, [], "RED: s: no test has passed"),
        ({"a": FINE, "b": "import os\nos._exit(1)\n"}, [], "pytest ended with exit code 1"),
        ({"a": FINE, "b": "import os\nos._exit(0)\n"}, [], "pytest ended with exit code 0"),
    ],
)
def test_what_has_not_run_is_not_green(
    tmp_path: Path, gated: Stage, capsys: pytest.CaptureFixture[str], files: dict[str, str], which: list[str], why: str
) -> None:
    write(tmp_path, **files)
    assert gate.main(which) == 1
    assert why in capsys.readouterr().out


def test_a_process_that_cannot_be_started_is_red(
    tmp_path: Path, gated: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, a=FINE, b=FINE)
    real, begun = subprocess.Popen, list[str]()

    def popen(*arguments: Any, **options: Any) -> Any:
        begun.append("one")
        if len(begun) == 2:
            raise OSError(12, "Cannot allocate memory")
        return real(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    assert gate.main([]) == 1
    assert "pytest could not be run: [Errno 12] Cannot allocate memory" in capsys.readouterr().out


def test_a_file_that_skips_itself_is_counted(tmp_path: Path, gated: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, a=FINE, b="import pytest\npytest.importorskip('no_such_module')\ndef test_never(): assert 0\n")
    assert gate.main([]) == 0
    assert "1 passed, 0 failed, 1 skipped" in capsys.readouterr().out
