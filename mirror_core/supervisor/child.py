"""Child processes that do not outlive their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import BinaryIO, Final

_PR_SET_PDEATHSIG: Final = 1


def tethered(command: Sequence[str], out: BinaryIO) -> subprocess.Popen[bytes]:
    """Start a child in a process group of its own that gets SIGTERM when the calling thread's process dies.

    A group of its own: Ctrl-C on the parent's terminal is the parent's to answer, and a child that hangs can be killed
    with all it has started. Other systems than Linux have no such tether; there, a killed parent leaves its child.
    """
    libc = ctypes.CDLL(None)  # before the fork: in the child there is no time for looking up libraries
    parent = os.getpid()

    def tie() -> None:
        if sys.platform == "linux":
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it died before the tether held
                os.kill(os.getpid(), signal.SIGTERM)

    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        process_group=0,
        preexec_fn=tie,
    )
