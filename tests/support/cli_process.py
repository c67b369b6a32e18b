"""The command line as users start it, but from this checkout, installed or not."""

from __future__ import annotations

import multiprocessing
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from typer.testing import CliRunner, Result

from mirror_core.cli.lazy_group import list_lazy_commands
from mirror_core.cli.main import app
from tests.support.json_schemas import check_document
from tests.support.waiting import patience

MIRRORBOOK: Final = (sys.executable, "-c", "from mirror_core.cli.main import main; main()")


def mirrorbook(*arguments: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; what it said and its exit code, whatever that is."""
    done = subprocess.run(
        [*MIRRORBOOK, *arguments], capture_output=True, text=True, timeout=patience(timeout_s), check=False
    )
    check_document(arguments, done.stdout)
    return done


def invoked(*arguments: str) -> Result:
    """The same in this process; an error is raised as it is."""
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    check_document(arguments, done.stdout)
    return done


def on_terminal(*arguments: str, answer: str, timeout_s: float = 120.0) -> tuple[int, str]:
    """Run a command on a terminal and answer its questions, each by one line; its exit code, and all that the terminal
    showed."""
    ours, its = pty.openpty()
    process = subprocess.Popen([*MIRRORBOOK, *arguments], stdin=its, stdout=its, stderr=its, start_new_session=True)
    os.close(its)
    said, answers, answered = b"", answer.splitlines() or [""], 0
    deadline = time.monotonic() + patience(timeout_s)
    try:
        while True:
            assert select.select([ours], [], [], max(0.0, deadline - time.monotonic()))[0], f"silent after {said!r}"
            try:
                said += os.read(ours, 4096)
            except OSError:  # as Linux says that nobody holds the other end any more
                break
            if sum(map(said.count, (b"[y/N]:", b"leaves all as it is:"))) > answered and answered < len(answers):
                os.write(ours, f"{answers[answered]}\n".encode())
                answered += 1
        assert answered, f"it asked nothing: {said!r}"
        return process.wait(patience(timeout_s)), said.decode().replace("\r\n", "\n")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


class Forked:
    """A command in a process of its own, as of `subprocess.Popen`: forked from one that has imported all it needs.

    Importing takes more than a second of CPU and tells nothing of a command that is to be killed; some tests start
    dozens. Not for Spark, whose processes are ended when Python's interpreter ends.
    """

    def __init__(self, *arguments: str, log: Path, before: Callable[[], object] = int) -> None:
        """`before` is called in the new process first: something that can be pickled. Nothing, if nothing is said."""
        self._process = _FORKS.Process(target=_run, args=(arguments, log, before))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit code, minus the signal's number when it was killed; None while it runs."""
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def terminate(self) -> None:
        self._process.terminate()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise TimeoutError(f"still running after {timeout} s")
        return code


_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["mirror_core.cli.main", "tests.support.cli_process", *(later.module for later in list_lazy_commands().values())]
)


def _run(arguments: Sequence[str], log: Path, before: Callable[[], object]) -> None:
    from mirror_core.cli.main import main

    nothing = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for there, here in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(there, here)
    sys.argv = ["mirrorbook", *arguments]
    before()
    main()


def completed(config: Path, *words: str, timeout_s: float = 120.0) -> list[str]:
    """What the shell offers for the last of these words; nothing else is shown."""
    asked = {
        "_MIRRORBOOK_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("mirrorbook", *words)),
        "COMP_CWORD": str(len(words)),
        "MIRRORBOOK_CONFIG": str(config),
    }
    done = subprocess.run(
        [sys.executable, "-c", "from mirror_core.cli.main import app; app(prog_name='mirrorbook')"],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=patience(timeout_s),
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()
