from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import BinaryIO, Final

_PR_SET_PDEATHSIG: Final = 1


def start_tethered(command: Sequence[str], output: BinaryIO) -> subprocess.Popen[bytes]:
    """In its own process group; on Linux it gets SIGTERM when the calling thread's process dies.

    So Ctrl-C is the parent's, and a hanging child can be killed with its children.
    """
    libc = ctypes.CDLL(None)  # before the fork, which must not load libraries
    parent = os.getpid()

    def set_death_signal() -> None:
        if sys.platform == "linux":
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # the parent died before
                os.kill(os.getpid(), signal.SIGTERM)

    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        process_group=0,
        preexec_fn=set_death_signal,
    )
