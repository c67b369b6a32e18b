"""The only translation of Mirrorbook's errors into Airflow's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowFailException

from mirror_core.model.errors import MirrorError
from mirror_core.model.text import escape_invisible_lines


@contextmanager
def airflow_errors() -> Iterator[None]:
    """Errors that may pass by themselves go through, so that the task's `retries` apply; the others fail it at once."""
    try:
        yield
    except MirrorError as error:
        if error.retryable:
            raise
        # The message is for a person and says all; a traceback above it would bury it in the log.
        message = f"{type(error).__name__} (exit code {error.exit_code}): {error}"
        raise AirflowFailException(escape_invisible_lines(message)) from None
