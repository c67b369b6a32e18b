"""A source cluster of the last Kafka 3.x, in KRaft mode, beside the newest destination.

Its jars are locked and fetched as the sandbox's are, when a test asks for such a cluster and not before.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from mirrorbook_tools.sandbox.jars import ensure_jars
from tests.support.kafka_clients import Pair
from tests.support.separate_cluster import in_place_of

LOCK: Final = Path(__file__).parents[1].joinpath("kafka-3.9.lock")


def older_source(pair: Pair, folder: Path) -> AbstractContextManager[Pair]:
    """`pair` with a Kafka 3.9 broker of its own in place of the source; the destination stays the shared one."""
    return in_place_of(pair, "east", folder, ensure_jars(LOCK))
