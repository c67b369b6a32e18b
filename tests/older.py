"""A source cluster of the last Kafka 3.x, in KRaft mode, beside the newest destination.

Its jars are locked and fetched as the sandbox's are, when a test asks for such a cluster and not before.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from mirror_core.sandbox.jars import ensure_jars
from tests.aside import in_place_of
from tests.brokers import Pair

LOCK: Final = Path(__file__).with_name("kafka-3.9.lock")


def older_source(pair: Pair, folder: Path) -> AbstractContextManager[Pair]:
    """`pair` with a Kafka 3.9 broker of its own in place of the source; the destination stays the shared one."""
    return in_place_of(pair, "east", folder, ensure_jars(LOCK))
