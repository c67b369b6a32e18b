"""Rewind a Spark checkpoint to the last batch that a cluster holds whole, after an unplanned failover to it.

    mirrorbook mirror describe NAME --json | python rewind_checkpoint.py CHECKPOINT [FILE_SINK]

For a query that does not run. Batches that read beyond an LMO (see what the new primary does not have), or were never
committed, are forgotten: by the checkpoint, by its state stores, and by the file sink, if there is one. Nothing is
deleted: files are moved to `CHECKPOINT.rewound` and `FILE_SINK.rewound`. Interrupted, it may be run again.
The standard library is all that it needs. Folders only: of an object store, work on a copy.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

Offsets = Mapping[str, int]
"""Next offset by partition, as in `orders-0`."""

NUMBERED: Final = re.compile(r"\.?(\d+)(\.compact)?(\.crc)*")
"""A batch in a log of Spark's, or its checksum."""
VERSION: Final = re.compile(r"\.?(\d+)\.(delta|snapshot|changelog|zip)(\.crc)*")
"""What a state store has after a batch, which is called by the number of the next one."""


def lmos_of(description: str) -> Offsets:
    rows = json.loads(description)["rows"]
    return {row["partition"]: row["lmo"] for row in rows if row["lmo"] is not None}


def read_to(batch: Path) -> Offsets:
    """How far a batch reads. Sources that are not Kafka say something else in their lines."""
    found = dict[str, int]()
    for line in batch.read_text(encoding="utf-8").splitlines()[2:]:
        topics = json.loads(line) if line.startswith("{") else {}
        for topic, offsets in topics.items():
            if isinstance(offsets, dict):
                found |= {f"{topic}-{partition}": offset for partition, offset in offsets.items()}
    return found


def last_whole(checkpoint: Path, lmos: Offsets) -> int:
    """Number of the last committed batch before the first one that is ahead."""
    whole = None
    for number in sorted(int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*")):
        reads = read_to(checkpoint / "offsets" / str(number))
        strange = sorted(reads.keys() - lmos.keys())
        if strange or not reads:
            names = ", ".join(strange[:5]) or "nothing of Kafka"
            sys.exit(f"{checkpoint}, batch {number} reads {names}: the mirror knows no LMO of it; was it promoted?")
        ahead = {p: f"{p} to {offset}, LMO {lmos[p]}" for p, offset in sorted(reads.items()) if offset > lmos[p]}
        if ahead:
            print(f"batch {number} read {'; '.join(ahead.values())}")
            break
        if (checkpoint / "commits" / str(number)).exists():
            whole = number
    if whole is None:
        sys.exit(f"{checkpoint}: no batch is old enough. Begin with a new checkpoint, and with a new place for output")
    return whole


def beyond(folder: Path, name: re.Pattern[str], last: int) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        match = name.fullmatch(path.name)
        if match and path.is_file() and int(match[1]) > last:
            yield path


def put_aside(root: Path, paths: Iterator[Path]) -> int:
    moved = 0
    for path in paths:
        place = root.with_name(f"{root.name}.rewound") / path.relative_to(root)
        while place.exists():  # of another time
            place = place.with_name(f"{place.name}~")
        place.parent.mkdir(parents=True, exist_ok=True)
        path.replace(place)
        moved += 1
    return moved


def main(checkpoint: Path, sink: Path | None) -> None:
    last = last_whole(checkpoint, lmos_of(sys.stdin.read()))
    moved = 0
    # The checkpoint's own logs last: they say where to, should this be interrupted and run again.
    if sink is not None:
        moved += put_aside(sink, beyond(sink / "_spark_metadata", NUMBERED, last))
    moved += put_aside(checkpoint, beyond(checkpoint / "state", VERSION, last + 1))
    for log in ("commits", "offsets"):
        moved += put_aside(checkpoint, beyond(checkpoint / log, NUMBERED, last))
    print(f"{checkpoint}: goes on behind batch {last}; {moved} files were put aside")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) == 3 else None)
