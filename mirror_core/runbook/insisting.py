"""Retries a step that lost the data plane's lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mirror_core.model.errors import LostOwnership
from mirror_core.model.run import StepEvidence
from mirror_core.runbook.acts import StepContext

_LEASE_ATTEMPTS: Final = 3


def retry_on_lease_loss(context: StepContext, step: str, action: Callable[[], StepEvidence]) -> StepEvidence:
    """Run `action`, which takes the data plane's lease, and may be repeated.

    A data plane that read the state before this step began may take the lease after us. It then reads that the step
    has begun, and ends.
    """
    for _ in range(_LEASE_ATTEMPTS):
        try:
            return action()
        except LostOwnership:
            step_record = context.journal.record(step)
            if step_record is None:
                raise
            context.writer.put(step_record)  # fails here if the run itself was lost
            context.print_line(
                "a data plane that was just starting has taken the lease; it ends by itself, and this begins anew"
            )
    return action()
