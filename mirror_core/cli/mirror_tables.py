"""The tables of `mirror describe`."""

from __future__ import annotations

from collections.abc import Sequence

from mirror_core.cli.tables import print_table
from mirror_core.decide.group_coverage import GroupCoverageRow
from mirror_core.mirrors.describe import PartitionDescription
from mirror_core.model.text import format_age, format_time


def print_partitions(rows: Sequence[PartitionDescription]) -> None:
    print_table(
        "Partitions",
        ["partition", "state", "position", "source end", "lag", "proved", "LMO", "kind", "reason"],
        [
            [
                *(r.partition, r.state, r.position, _format_known(r.source_end), _format_known(r.lag), r.verified_end),
                *(r.lmo, r.kind, r.reason),
            ]
            for r in rows
        ],
    )


def _format_known(value: int | None) -> object:
    return "unknown" if value is None else value


def print_group_coverage(groups: Sequence[GroupCoverageRow]) -> None:
    if groups:
        print_table(
            "Groups",
            ["group", "partition", "coverage", "offset", "clamped by", "age", "because"],
            [
                [
                    *(g.group, g.partition or "all", g.coverage, g.offset, g.clamped_by or None),
                    *("unknown" if g.age_s is None else format_age(g.age_s), g.reason),
                ]
                for g in groups
            ],
        )


def print_seeding(rows: Sequence[PartitionDescription]) -> None:
    seeding = [r for r in rows if r.missing_offsets]
    if seeding:
        print_table(
            "Seeding, up to where the source begins",
            ["partition", "offsets done", "of", "left"],
            [[r.partition, r.position, r.source_start, r.missing_offsets] for r in seeding],
        )


def print_never_copied(rows: Sequence[PartitionDescription]) -> None:
    never_copied = [(r.partition, r.never_copied) for r in rows if r.never_copied]
    if never_copied:
        print_table(
            "Deleted on the source before they were copied",
            ["partition", "offsets", "first found", "last of them", "found"],
            [
                [p, n.offsets, format_time(n.since_ms), f"[{n.first}, {n.next})", format_time(n.newest_ms)]
                for p, n in never_copied
            ],
        )
