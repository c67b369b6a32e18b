"""Progress of a running task, told to the driver by datagrams."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable
from typing import Final

from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.states import State
from mirror_core.model.copying import Assignment


class Beacon:
    """A datagram a second to whoever watches; losing one does no harm."""

    _ROWS: Final = 180  # a datagram holds 65,507 bytes, a topic name up to 249

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.at = assignment.progress
        self.due = 0.0
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM) if self.at else None

    def tell(self, replicators: Iterable[PartitionReplicator], last: bool = False) -> None:
        now = time.time()
        if self.sock is None or self.at is None or (now < self.due and not last):
            return
        self.due = now + 1.0
        rows = [
            [
                one.partition.topic,
                one.partition.index,
                one.place.acknowledged,
                # One that has lost its place may have lost its source, too: what that said before is not true now.
                None if one.state is State.LOST else one.source.end,
                one.records,
                one.tally.bytes,
                max(0, one.place.seed_end - one.place.acknowledged),
            ]
            for one in replicators
            if one.tally.first is not None
        ]
        for start in range(0, len(rows), self._ROWS):
            message = {
                "token": self.at.token,
                "task": self.assignment.task,
                "epoch": self.assignment.epoch,
                "t": now,
                "rows": rows[start : start + self._ROWS],
            }
            self.sock.sendto(json.dumps(message).encode(), (self.at.host, self.at.port))

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None
