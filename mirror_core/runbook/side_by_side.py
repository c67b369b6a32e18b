"""A set's failover: threads per mirror with retries, its plans and runs, and the next moves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from mirror_core.model.errors import LostOwnership, MirrorError
from mirror_core.model.names import MirrorName

TRIES: Final = 3
PAUSE_S: Final = 2.0

Say = Callable[[str], None]


def at_once(acts: Mapping[MirrorName, Callable[[], None]], say: Say) -> dict[MirrorName, MirrorError]:
    """Run all; returns the errors. LostOwnership of one ends all."""
    errors: dict[MirrorName, BaseException] = {}

    def act(name: MirrorName) -> None:
        try:
            acts[name]()
        except BaseException as error:  # noqa: BLE001 - raised by the waiting thread
            errors[name] = error

    # Daemons: Ctrl-C must end the process.
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
    for tries_left in reversed(range(TRIES)):
        try:
            act()
            return
        except MirrorError as error:
            if not error.retryable or not tries_left:
                raise
            say(f"{name}: {error}; once more")
            time.sleep(PAUSE_S)
