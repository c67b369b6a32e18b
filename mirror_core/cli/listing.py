"""`mirrorbook mirror`: parse, call, print."""

from __future__ import annotations

import msgspec

from mirror_core.cli.common import (
    ConfigOption,
    JsonOption,
    NameArgument,
    configuration,
    mirror,
    print_facts,
    print_json,
    print_table,
    refuse_unknown,
)
from mirror_core.decide.standing import when
from mirror_core.mirrors.describe import Description
from mirror_core.mirrors.describe import describe as describe_mirror
from mirror_core.model.clock import now_ms
from mirror_core.model.documents import Document, prints
from mirror_core.model.errors import MirrorError
from mirror_core.model.mirror import Desired, PartitionState
from mirror_core.state.link import states
from mirror_core.state.records import TOPIC


class MirrorRow(msgspec.Struct, frozen=True, kw_only=True):
    """A mirror, by its destination's state topic."""

    name: str
    source: str
    destination: str
    desired: Desired
    """As the operator wants it."""
    partitions: int
    failed: int
    """FAILED partitions."""


class SilentCluster(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that did not answer."""

    cluster: str
    error: str


class UnreadableKey(msgspec.Struct, frozen=True, kw_only=True):
    """An unreadable record of a state topic."""

    cluster: str
    key: str
    error: str


class MirrorsDocument(Document, frozen=True, kw_only=True):
    """All known mirrors. Incomplete if `silent` or `unreadable` is not empty."""

    mirrors: tuple[MirrorRow, ...]
    silent: tuple[SilentCluster, ...]
    unreadable: tuple[UnreadableKey, ...]


@prints(MirrorsDocument)
def list_command(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """All mirrors that the configured clusters know. Exit code 4 when one did not answer."""
    rows, silent, unreadable = list[MirrorRow](), list[SilentCluster](), list[UnreadableKey]()
    for cluster, answer in states(configuration(config)):
        if isinstance(answer, MirrorError):
            silent.append(SilentCluster(cluster=cluster, error=str(answer)))
            continue
        unreadable += [UnreadableKey(cluster=cluster, key=key, error=why) for key, why in answer.unreadable.items()]
        for found in answer.mirrors.values():
            statuses = answer.partitions.get(found.name, {}).values()
            failed = sum(s.state is PartitionState.FAILED for s in statuses)
            rows.append(
                MirrorRow(
                    name=found.name,
                    source=found.source,
                    destination=found.destination,
                    desired=found.desired,
                    partitions=len(statuses),
                    failed=failed,
                )
            )
    rows.sort(key=lambda row: row.name)
    if as_json:
        print_json(MirrorsDocument(mirrors=tuple(rows), silent=tuple(silent), unreadable=tuple(unreadable)))
    else:
        print_table("Mirrors", MirrorRow.__struct_fields__, [msgspec.structs.astuple(row) for row in rows])
    unknown = [row.error for row in silent]
    unknown += [f"cluster {r.cluster}, state topic {TOPIC}, key {r.key}: {r.error}" for r in unreadable]
    refuse_unknown("mirrors", unknown)


@prints(Description)
def describe(name: NameArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """One mirror: state, position and lag of each partition, who copies it."""
    link, state = mirror(config, name)
    seen = describe_mirror(link, state, now_ms())
    if as_json:
        print_json(seen)
        return
    print_facts(seen.facts)
    print_table(
        "Partitions",
        ["partition", "state", "position", "source end", "lag", "proved", "LMO", "kind", "reason"],
        [
            [
                *(r.partition, r.state, r.position, _known(r.source_end), _known(r.lag), r.proved),
                *(r.lmo, r.kind, r.reason),
            ]
            for r in seen.rows
        ],
    )
    late = [r for r in seen.rows if r.missing]
    if late:
        print_table(
            "Seeding, up to where the source begins",
            ["partition", "offsets done", "of", "left"],
            [[r.partition, r.position, r.source_start, r.missing] for r in late],
        )
    never = [(r.partition, r.never_copied) for r in seen.rows if r.never_copied]
    if never:
        print_table(
            "Deleted on the source before they were copied",
            ["partition", "offsets", "first found", "last of them", "found"],
            [[p, n.offsets, when(n.since_ms), f"[{n.first}, {n.next})", when(n.newest_ms)] for p, n in never],
        )


def _known(value: int | None) -> object:
    return "unknown" if value is None else value
