"""A process that is suspended does nothing more, whatever the machine is busy with."""

from __future__ import annotations

import subprocess
import sys

import psutil

from mirrorbook_tools.sandbox.process import is_alive, suspend

THREADS = 40
BUSY = f"""
import hashlib, threading
def work():
    while True:
        hashlib.sha256(bytes(1 << 20))
for _ in range({THREADS}):
    threading.Thread(target=work).start()
print("busy", flush=True)
"""


def test_no_thread_of_a_suspended_process_runs_on() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"busy\n"
            process = psutil.Process(child.pid)
            assert process.num_threads() > THREADS
            suspend(process)
            assert {psutil.Process(t.id).status() for t in process.threads()} == {psutil.STATUS_STOPPED}
            before = process.cpu_times()
            assert is_alive(process)
            assert process.cpu_times() == before
        finally:
            child.kill()


def test_a_process_that_has_ended_is_not_waited_for() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = psutil.Process(child.pid)
        child.kill()
        suspend(process)
        assert not is_alive(process)
