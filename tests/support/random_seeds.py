"""Seeds of tests that choose by chance: the same in each run, so that a failure comes again, and new ones on demand."""

from __future__ import annotations

import os
import secrets
import zlib
from typing import Final

EXPLORE: Final = "MIRRORBOOK_EXPLORE"
"""When this is set, each run has seeds of its own, to find what nobody has found yet."""
SEED: Final = "MIRRORBOOK_SEED"
"""This number is the seed, whatever else is set: what a run that failed has printed."""


def seed_of(name: str, *, usual: int | None = None) -> int:
    """For the test (or one case of it) of this name; printed, so that a failure names it.

    `usual`: the one that it has when nothing is set, if it is not to be made of the name.
    """
    if given := os.environ.get(SEED):
        seed = int(given)
    elif os.environ.get(EXPLORE):
        seed = secrets.randbits(32)
    else:
        seed = zlib.crc32(name.encode()) if usual is None else usual
    print(f"{name}: seed {seed}; again with {SEED}={seed}")
    return seed
