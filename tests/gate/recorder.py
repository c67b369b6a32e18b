"""A plugin of pytest: writes down what runs, how it ends, and of each failure what a person needs to understand it.

Loaded with `-p tests.gate.recorder --record FILE`. Logs are copied beside that file, since pytest's own temporary
folders do not outlive the machine, or the next runs.
"""

from __future__ import annotations

import re
import shutil
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

from tests.gate.events import Collected, Ended, Event, Failure, Outcome, line_of
from tests.gate.failing import about_data, essence
from tests.support.waiting import how_busy

RECENT_S: Final = 600.0
"""A log that nobody has written to for so long is not copied."""
MOST_BYTES: Final = 1 << 20
SEGMENT: Final = re.compile(r"[0-9]{20}")
"""Names of a broker's data, which end in .log as well."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, required=True, help="file that gets what runs and how it ends")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(config.getoption("--record"), config), "mirrorbook-recorder")


class Recorder:
    def __init__(self, path: Path, config: pytest.Config) -> None:
        self._path = path
        self._config = config
        self._seconds: dict[str, float] = defaultdict(float)
        self._outcome: dict[str, Outcome] = {}
        path.parent.mkdir(parents=True, exist_ok=True)

    def _write(self, event: Event) -> None:
        with self._path.open("ab") as file:
            file.write(line_of(event))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._write(Collected(tuple(item.nodeid for item in session.items)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(self._failure(report.nodeid, "collection", report.longreprtext, "", again=False))
        elif report.skipped:  # a file as a whole
            self._write(Ended(test=report.nodeid, outcome="skipped", seconds=0.0))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        self._seconds[item.nodeid] += report.duration
        if report.failed:
            self._outcome[item.nodeid] = "failed"
            assert call.excinfo is not None
            said = "\n".join(text for title, text in report.sections if text.strip())
            again = not (about_data(call.excinfo.value, report.longreprtext) or _is_property(item))
            self._write(self._failure(item.nodeid, call.when, report.longreprtext, said, again=again))
        elif report.skipped:
            self._outcome.setdefault(item.nodeid, "skipped")
        return report

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        outcome = self._outcome.get(nodeid, "passed")
        self._write(Ended(test=nodeid, outcome=outcome, seconds=round(self._seconds[nodeid], 2)))

    def _failure(self, test: str, phase: str, text: str, said: str, *, again: bool) -> Failure:
        logs = self._path.parent / "logs" / (re.sub(r"[^A-Za-z0-9]+", "-", test)[-100:] or "collection")
        copied = self._copy_logs(logs)
        logs.mkdir(parents=True, exist_ok=True)
        (logs / "failure.txt").write_text(f"{text}\n\n{said}\n", encoding="utf-8")
        return Failure(
            test=test,
            phase=phase,
            error=essence(text),
            said=said[-20_000:],
            brokers="\n".join(f"{path.relative_to(logs)}:\n{_alarming(path)}" for path in copied),
            load=how_busy(),
            logs=str(logs),
            again=again,
        )

    def _copy_logs(self, to: Path) -> list[Path]:
        """The ends of the logs that were written lately in this process' temporary folder."""
        base: Path = self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        copied = []
        for path in sorted(base.rglob("*.log")):
            try:
                recent = path.is_file() and time.time() - path.stat().st_mtime < RECENT_S
                if not recent or SEGMENT.match(path.name):
                    continue
                target = to / path.relative_to(base)
                target.parent.mkdir(parents=True, exist_ok=True)
                with path.open("rb") as file:
                    file.seek(max(0, path.stat().st_size - MOST_BYTES))
                    with target.open("wb") as copy:
                        shutil.copyfileobj(file, copy)
            except FileNotFoundError:
                continue  # its broker, or its test, has just taken it away
            copied.append(target)
        return copied


def _is_property(item: pytest.Item) -> bool:
    return getattr(getattr(item, "obj", None), "is_hypothesis_test", False)


def _alarming(path: Path) -> str:
    """Its last lines that are warnings or worse; without such lines, its last ones."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    alarming = [line[:300] for line in lines if re.search(r"\b(WARN|ERROR|FATAL|Exception)\b", line)]
    return "\n".join((alarming or [line[:300] for line in lines])[-8:])
