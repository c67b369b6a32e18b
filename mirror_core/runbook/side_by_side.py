"""A set's failover: threads per mirror with retries, its plans and runs, and the next moves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from mirror_core.model.errors import LostOwnership, MirrorError
from mirror_core.model.names import MirrorName

MAX_TRIES: Final = 3
RETRY_PAUSE_S: Final = 2.0

PrintLine = Callable[[str], None]


def run_parallel(
    actions: Mapping[MirrorName, Callable[[], None]], print_line: PrintLine
) -> dict[MirrorName, MirrorError]:
    """Run all; returns the errors. LostOwnership of one ends all."""
    errors: dict[MirrorName, BaseException] = {}

    def run_action(name: MirrorName) -> None:
        try:
            actions[name]()
        except BaseException as error:  # noqa: BLE001 - raised by the waiting thread
            errors[name] = error

    # Daemons: Ctrl-C must end the process.
    threads = [
        threading.Thread(target=run_action, args=(name,), name=f"mirror {name}", daemon=True) for name in actions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, error in errors.items():
        print_line(f"{name}: {error}")
    for name, error in errors.items():
        if isinstance(error, LostOwnership):
            others_advice = "the others wait where they are: run the set again, or resume them one by one"
            raise LostOwnership(f"{name}: {error}; {others_advice}") from None
        if not isinstance(error, MirrorError):
            raise error
    return {name: error for name, error in errors.items() if isinstance(error, MirrorError)}


def retry_until_done(name: MirrorName, print_line: PrintLine, action: Callable[[], object]) -> None:
    for tries_left in reversed(range(MAX_TRIES)):
        try:
            action()
            return
        except MirrorError as error:
            if not error.retryable or not tries_left:
                raise
            print_line(f"{name}: {error}; once more")
            time.sleep(RETRY_PAUSE_S)
