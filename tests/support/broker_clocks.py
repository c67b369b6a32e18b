"""Brokers whose wall clock is wrong, by Debian's libfaketime; what they wait for goes by the clock of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def find_library() -> Path:
    found = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    assert found, "libfaketime is missing: apt-get install --no-install-recommends libfaketime"
    return found


@contextmanager
def clock_off(hours: int) -> Iterator[None]:
    """Of every broker that is started meanwhile, until it ends."""
    settings = {
        "LD_PRELOAD": str(find_library()),
        "FAKETIME": f"{hours:+}h",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",  # with its mend waits of a JVM end at once
        "NO_FAKE_STAT": "1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        yield
