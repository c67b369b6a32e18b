"""Offset following, shared by tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mirror_core.dataplane.driver import EPOCH_S, Replication, ReplicationOptions
from mirror_core.dataplane.task_runner import LocalRunner
from mirror_core.state.mirror_link import MirrorLink
from tests.support.checked_threads import beside


@contextmanager
def replicating(link: MirrorLink, *, epoch_s: float = EPOCH_S) -> Iterator[Replication]:
    """The data plane, in a thread of this process, until the end of the block."""
    stop, options = threading.Event(), ReplicationOptions(epoch_s=epoch_s)
    driver = Replication(link, LocalRunner, options, stop=stop, report_line=lambda line: None)
    with beside(driver.run, stop.set, name=f"data plane of {link.mirror.name}"):
        yield driver
