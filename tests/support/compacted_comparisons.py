"""Compacted comparisons, shared by tests."""

from __future__ import annotations

from tests.support.parity_topics import START_MS, Content


def keyed(count: int, version: int = 0) -> list[Content]:
    """Each with a key of its own."""
    return [Content(key=b"k%d" % n, value=b"%d.%d" % (n, version), timestamp_ms=START_MS + n) for n in range(count)]
