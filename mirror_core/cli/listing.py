"""`mirrorbook mirror`: parse, call, print."""

from __future__ import annotations

import msgspec

from mirror_core.cli.common import (
    ConfigOption,
    JsonOption,
    NameArgument,
    find_mirror,
    load_configuration,
    print_facts,
    print_json,
    print_table,
    refuse_incomplete_list,
)
from mirror_core.decide.standing import format_time
from mirror_core.mirrors.describe import MirrorDescription
from mirror_core.mirrors.describe import describe_mirror as describe_mirror
from mirror_core.model.clock import now_ms
from mirror_core.model.documents import JsonDocument, prints_json
from mirror_core.model.errors import MirrorError
from mirror_core.model.mirror import DesiredState, PartitionState
from mirror_core.state.link import read_states
from mirror_core.state.records import STATE_TOPIC


class MirrorListRow(msgspec.Struct, frozen=True, kw_only=True):
    """A mirror, by its destination's state topic."""

    name: str
    source: str
    destination: str
    desired: DesiredState
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


class MirrorsDocument(JsonDocument, frozen=True, kw_only=True):
    """All known mirrors. Incomplete if `silent` or `unreadable` is not empty."""

    mirrors: tuple[MirrorListRow, ...]
    silent: tuple[SilentCluster, ...]
    unreadable: tuple[UnreadableKey, ...]


@prints_json(MirrorsDocument)
def list_command(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """All mirrors that the configured clusters know. Exit code 4 when one did not answer."""
    rows, silent, unreadable = list[MirrorListRow](), list[SilentCluster](), list[UnreadableKey]()
    for cluster, state_or_error in read_states(load_configuration(config)):
        if isinstance(state_or_error, MirrorError):
            silent.append(SilentCluster(cluster=cluster, error=str(state_or_error)))
            continue
        unreadable += [
            UnreadableKey(cluster=cluster, key=key, error=error) for key, error in state_or_error.unreadable.items()
        ]
        for mirror in state_or_error.mirrors.values():
            statuses = state_or_error.partitions.get(mirror.name, {}).values()
            failed = sum(s.state is PartitionState.FAILED for s in statuses)
            rows.append(
                MirrorListRow(
                    name=mirror.name,
                    source=mirror.source,
                    destination=mirror.destination,
                    desired=mirror.desired,
                    partitions=len(statuses),
                    failed=failed,
                )
            )
    rows.sort(key=lambda row: row.name)
    if as_json:
        print_json(MirrorsDocument(mirrors=tuple(rows), silent=tuple(silent), unreadable=tuple(unreadable)))
    else:
        print_table("Mirrors", MirrorListRow.__struct_fields__, [msgspec.structs.astuple(row) for row in rows])
    unknown = [row.error for row in silent]
    unknown += [f"cluster {r.cluster}, state topic {STATE_TOPIC}, key {r.key}: {r.error}" for r in unreadable]
    refuse_incomplete_list("mirrors", unknown)


@prints_json(MirrorDescription)
def describe(name: NameArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """One mirror: state, position and lag of each partition, who copies it."""
    link, state = find_mirror(config, name)
    description = describe_mirror(link, state, now_ms())
    if as_json:
        print_json(description)
        return
    print_facts(description.facts)
    print_table(
        "Partitions",
        ["partition", "state", "position", "source end", "lag", "proved", "LMO", "kind", "reason"],
        [
            [
                *(r.partition, r.state, r.position, _format_known(r.source_end), _format_known(r.lag), r.verified_end),
                *(r.lmo, r.kind, r.reason),
            ]
            for r in description.rows
        ],
    )
    seeding = [r for r in description.rows if r.missing_offsets]
    if seeding:
        print_table(
            "Seeding, up to where the source begins",
            ["partition", "offsets done", "of", "left"],
            [[r.partition, r.position, r.source_start, r.missing_offsets] for r in seeding],
        )
    never_copied = [(r.partition, r.never_copied) for r in description.rows if r.never_copied]
    if never_copied:
        print_table(
            "Deleted on the source before they were copied",
            ["partition", "offsets", "first found", "last of them", "found"],
            [
                [p, n.offsets, format_time(n.since_ms), f"[{n.first}, {n.next})", format_time(n.newest_ms)]
                for p, n in never_copied
            ],
        )


def _format_known(value: int | None) -> object:
    return "unknown" if value is None else value
