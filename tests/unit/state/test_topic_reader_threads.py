"""Reading the states of several clusters at the same time: in a process of its own, since what went wrong ended it."""

from __future__ import annotations

import subprocess
import sys

FIRST_READ_BY_MANY = """
import sys, threading
from mirror_core.state.state_records import _DECODERS, State

sys.setswitchinterval(1e-6)
together = threading.Barrier(4)

def read():
    together.wait()
    for kind in _DECODERS:
        State().apply(kind + "/x", b'{"v": 2, "data": {"mirror": "m", "run": "r"}}')

threads = [threading.Thread(target=read) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("read")
"""


def test_threads_that_read_their_first_records_at_once_live_on() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_READ_BY_MANY], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr
