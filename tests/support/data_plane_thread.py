"""A data plane that goes on in this process, and the heartbeats that it makes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.task_runner import LocalRunner
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import get_heartbeat_topic
from tests.support.checked_threads import beside
from tests.support.kafka_clients import read_all
from tests.support.mirrored_topics import Mirrored
from tests.support.waiting import patience, wait_until

TIMEOUT_S: Final = patience(60.0)


@contextmanager
def driving(mirrored: Mirrored, *, epoch_s: float = 3) -> Iterator[list[str]]:
    """A data plane in this process, until left; what it says. It may end early: a source dies, a run takes over."""
    stop, said = threading.Event(), list[str]()

    def run() -> None:
        try:
            Replication(
                mirrored.link, LocalRunner, ReplicationOptions(epoch_s=epoch_s), stop=stop, report_line=said.append
            ).run()
        except MirrorError as error:
            said.append(f"the data plane ended: {error}")

    with beside(run, stop.set, name=f"data plane of {mirrored.name}", timeout_s=TIMEOUT_S):
        yield said


def beats(mirrored: Mirrored, cluster: str = "west") -> list[dict[str, object]]:
    topic = get_heartbeat_topic(mirrored.name)
    side = getattr(mirrored.pair, cluster)
    return [json.loads(record.value or b"") for record in read_all(side, topic)]


def beating(mirrored: Mirrored, at_least: int) -> None:
    topic = get_heartbeat_topic(mirrored.name)

    def arrived() -> bool:
        return any(p.topic == topic for p in mirrored.statuses) and len(beats(mirrored)) >= at_least

    wait_until(arrived, timeout_s=TIMEOUT_S, why=f"{at_least} heartbeats of {mirrored.name} arrive")
