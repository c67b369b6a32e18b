"""Offset following, shared by tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.task_runner import LocalRunner
from mirror_core.state.mirror_link import MirrorLink
from tests.support.checked_threads import beside


@contextmanager
def replicating(link: MirrorLink) -> Iterator[Replication]:
    """The data plane, in a thread of this process, until the end of the block."""
    stop = threading.Event()
    driver = Replication(link, LocalRunner, ReplicationOptions(), stop=stop, report_line=lambda line: None)
    with beside(driver.run, stop.set, name=f"data plane of {link.mirror.name}"):
        yield driver
