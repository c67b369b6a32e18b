"""What is done for several mirrors at the same time, each in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from mirror_core.model.errors import LostOwnership, MirrorError
from mirror_core.model.names import MirrorName

TRIES: Final = 3
"""Of a step that fails for a reason that may pass, before the set is given up for it."""
PAUSE_S: Final = 2.0

Say = Callable[[str], None]


def at_once(acts: Mapping[MirrorName, Callable[[], None]], say: Say) -> dict[MirrorName, MirrorError]:
    """Do all of them; what went wrong. LostOwnership of one ends it for all."""
    errors: dict[MirrorName, BaseException] = {}

    def act(name: MirrorName) -> None:
        try:
            acts[name]()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits, not swallowed
            errors[name] = error

    # Daemons: Ctrl-C ends this process as it ends one that moves a single mirror.
    threads = [threading.Thread(target=act, args=(name,), name=f"mirror {name}", daemon=True) for name in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, error in errors.items():
        say(f"{name}: {error}")
    for name, error in errors.items():
        if isinstance(error, LostOwnership):
            others = "the others wait where they are: run the set again, or resume them one by one"
            raise LostOwnership(f"{name}: {error}; {others}") from None
        if not isinstance(error, MirrorError):
            raise error
    return {name: error for name, error in errors.items() if isinstance(error, MirrorError)}


def patiently(name: MirrorName, say: Say, act: Callable[[], object]) -> None:
    """Do it, and once more where it fails for a reason that may pass."""
    for tries_left in reversed(range(TRIES)):
        try:
            act()
            return
        except MirrorError as error:
            if not error.retryable or not tries_left:
                raise
            say(f"{name}: {error}; once more")
            time.sleep(PAUSE_S)
