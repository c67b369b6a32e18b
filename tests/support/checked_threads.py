"""Functions in threads of their own: what goes wrong there is raised where the test waits for their end."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, Self, TypeVar

T = TypeVar("T")

ENDS_S: Final = 60.0
"""A thread that was told to end, and has not ended after so long, does not end."""


class Work(Generic[T]):
    """A function in a thread. An error is kept until somebody waits for the end, and raised there once.

    Pytest would report an error that leaves a thread as a failure of whatever test runs at that moment.
    """

    def __init__(self, function: Callable[[], T], name: str = "") -> None:
        self.name = name or getattr(function, "__qualname__", repr(function))
        self._function = function
        self._found: list[T] = []
        self._error: BaseException | None = None
        # A daemon: a thread that hangs fails its test, and must not keep the whole process from ending.
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def wait(self, timeout_s: float) -> None:
        """For the end, or for so long."""
        self._thread.join(timeout_s)

    def join(self, timeout_s: float = ENDS_S) -> None:
        """Wait for the end. Raises what the function raised, unless it was raised here before."""
        self._thread.join(timeout_s)
        assert not self.alive, f"thread {self.name} has not ended within {timeout_s:g} s"
        error, self._error = self._error, None
        if error is not None:
            raise error

    def result(self, timeout_s: float = ENDS_S) -> T:
        """What the function returned."""
        self.join(timeout_s)
        return self._found[0]

    def _run(self) -> None:
        try:
            self._found.append(self._function())
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits for the end
            self._error = error


@contextmanager
def beside(
    function: Callable[[], T], stop: Callable[[], object], *, name: str = "", timeout_s: float = ENDS_S
) -> Iterator[Work[T]]:
    """The function runs beside the block, in a thread; when the block is left, `stop` tells it to end.

    Its error is raised here. If the block has failed, too, that failure stays, with a note of the other one.
    """
    work = Work(function, name).start()
    try:
        yield work
    except BaseException as failed:
        stop()
        try:
            work.join(timeout_s)
        except BaseException as error:  # noqa: BLE001 - noted on the failure that goes on
            failed.add_note(f"beside it, in thread {work.name}:\n{''.join(traceback.format_exception(error))}")
        raise
    stop()
    work.join(timeout_s)
