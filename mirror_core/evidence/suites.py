"""The three suites: each table's columns, and what is expected of it.

Mirrorbook's expectations always apply. User tiers and expectations are added.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from mirror_core.decide.expected import LIMITS, NOTHING, Expected, Judging, Own
from mirror_core.model.drift import Action, Part
from mirror_core.model.mirror import PartitionState

TIER: Final = "tier"
_UNKNOWN_TO_GX: Final = frozenset(
    {
        "expect_column_values_to_be_null",
        "expect_column_values_to_not_be_null",
        "expect_column_proportion_of_non_null_values_to_be_between",
        "expect_column_to_exist",
    }
)
"""All other expectations skip nulls, so unknown would pass."""


@dataclass(frozen=True, slots=True)
class Column:
    """Null means unknown."""

    name: str
    type: pa.DataType = field(repr=False)
    meaning: str
    nullable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    type: str
    kwargs: Mapping[str, object]
    by: str = ""
    looks: bool = False
    """A precondition: if it fails, nothing was judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    judging: Judging
    columns: tuple[Column, ...]
    index: tuple[str, ...]
    place: str
    """Format of a failure's place, from the index and `value`."""
    ours: tuple[Expect, ...]
    fills: Mapping[str, int | str] = field(default_factory=dict)
    """Fillers for nulls in compared columns, which would be skipped."""

    @property
    def schema(self) -> pa.Schema:
        fields = [pa.field(c.name, c.type, nullable=c.nullable) for c in self.columns if c.name != TIER]
        return pa.schema(fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    suite: Suite
    more: Expected = NOTHING

    @property
    def own(self) -> tuple[Own, ...]:
        return self.more.own.get(self.suite.judging, ())

    def expectations(self) -> list[Expect]:
        found: dict[str, Expect] = {}
        for one in (*self.suite.ours, *_tiers(self.suite, self.more), *self._theirs()):
            found.setdefault(json.dumps([one.type, one.kwargs], sort_keys=True, default=str), one)
        return list(found.values())

    def _theirs(self) -> Iterator[Expect]:
        for own in self.own:
            kwargs = dict(own.kwargs) if own.tier is None else {**own.kwargs, "row_condition": _is(own.tier)}
            yield from _known(self.suite, Expect(type=own.type, kwargs=kwargs, by=own.at))


def columns_of(kwargs: Mapping[str, object]) -> list[str]:
    named = [kwargs[word] for word in ("column", "column_A", "column_B") if word in kwargs]
    for word in ("column_list", "column_set"):
        several = kwargs.get(word, ())
        named += several if isinstance(several, Sequence) and not isinstance(several, str) else [several]
    return [str(name) for name in named]


def _tiers(suite: Suite, more: Expected) -> Iterator[Expect]:
    for tier in more.tiers:
        by = f"tier {tier.name}"
        if suite.judging is Judging.READINESS:
            yield _some_rows(_is(tier.name), by)
            for word, limit in tier.limits.items():
                kwargs: dict[str, Any] = {"column": LIMITS[word], "max_value": limit, "row_condition": _is(tier.name)}
                yield from _known(suite, _expect("column_values_to_be_between", f"{by}: {word} {limit:g}", **kwargs))
        if suite.judging is Judging.SYNC and tier.no_drift:
            # Groups commit all the time; the age of their offsets has its own limit.
            still = f'{_is(tier.name)} and part != "{Part.GROUPS}"'
            yield _some_rows(still, by)
            kwargs = {"column": "pending", "value_set": [False], "row_condition": still}
            yield _expect("column_values_to_be_in_set", f"{by}: drift none", **kwargs)


def _known(suite: Suite, one: Expect) -> Iterator[Expect]:
    condition = {word: one.kwargs[word] for word in ("row_condition", "condition_parser") if one.kwargs.get(word)}
    if "row_condition" in condition:
        yield _expect("table_row_count_to_be_between", one.by, looks=True, min_value=1, **condition)
    blank = {column.name for column in suite.columns if column.nullable} - suite.fills.keys()
    for name in columns_of(one.kwargs) if one.type not in _UNKNOWN_TO_GX else ():
        if name in blank:
            yield _expect("column_values_to_not_be_null", one.by, looks=True, column=name, **condition)
    yield one


def _some_rows(condition: str, by: str) -> Expect:
    return _expect("table_row_count_to_be_between", by, looks=True, min_value=1, row_condition=condition)


def _is(tier: str) -> str:
    return f'{TIER} == "{tier}"'


def _expect(what: str, by: str = "", *, looks: bool = False, **kwargs: Any) -> Expect:
    return Expect(type=f"expect_{what}", kwargs=kwargs, by=by, looks=looks)


_TIER: Final = Column(TIER, pa.string(), "the first tier of your file that names the topic; empty: none does")
_TOPIC: Final = Column("topic", pa.string(), "its topic")
_PARTITION: Final = Column("partition", pa.int32(), "its number")

PARITY: Final = Suite(
    judging=Judging.PARITY,
    columns=(
        _TOPIC,
        _PARTITION,
        _TIER,
        Column(
            "chunk", pa.int64(), "number of the piece of the log, of the first if several are one row; -1: its ends"
        ),
        Column("start", pa.int64(), "first offset of the piece"),
        Column("end", pa.int64(), "next offset after it"),
        Column("level", pa.int8(), "how it was compared: 1 ends, 2 digests, 3 records"),
        Column("src_count", pa.int64(), "records (at level 1: offsets) of the source; -1: not read", nullable=True),
        Column("dst_count", pa.int64(), "the same of the destination", nullable=True),
        Column("src_digest", pa.string(), "digest of the source's records; empty: none was made"),
        Column("dst_digest", pa.string(), "the same of the destination"),
        Column("compared", pa.int64(), "records that were compared"),
        Column("differing", pa.int64(), "differences found"),
        Column("error", pa.string(), "why it could not be compared; empty: it was"),
    ),
    index=("topic", "partition", "chunk"),
    place="{topic}-{partition} chunk {chunk}",
    ours=(
        _expect("table_row_count_to_be_between", min_value=1),
        _expect("column_sum_to_be_between", column="compared", min_value=1),
        _expect("column_pair_values_to_be_equal", column_A="src_count", column_B="dst_count"),
        _expect("column_pair_values_to_be_equal", column_A="src_digest", column_B="dst_digest"),
        _expect("column_values_to_be_in_set", column="differing", value_set=[0]),
        _expect("column_values_to_be_in_set", column="error", value_set=[""]),
    ),
    fills=MappingProxyType({"src_count": -1, "dst_count": -1, "src_digest": "", "dst_digest": ""}),
)

SYNC: Final = Suite(
    judging=Judging.SYNC,
    columns=(
        Column("part", pa.string(), f"{', '.join(Part)}"),
        Column("subject", pa.string(), "topic, topic and setting, access control entry, or group and partition"),
        Column("topic", pa.string(), "the topic that it is about; empty: none, or more than one"),
        _TIER,
        Column("source", pa.string(), "the source's value; empty: it has none"),
        Column("destination", pa.string(), "the destination's value; empty: it has none"),
        Column("action", pa.string(), f"what a sync would do: {', '.join(Action)}"),
        Column("pending", pa.bool_(), "a sync would change something"),
        Column("reason", pa.string(), "why so, or why nothing is done"),
    ),
    index=("part", "subject"),
    place="{part} {subject}",
    ours=(
        _expect("table_row_count_to_be_between", looks=True, min_value=1),
        _expect("column_values_to_not_be_in_set", column="action", value_set=[str(Action.REFUSE)]),
    ),
)

_SAME: Final = "; of the mirror, the same in each row"
READINESS: Final = Suite(
    judging=Judging.READINESS,
    columns=(
        _TOPIC,
        _PARTITION,
        _TIER,
        Column("state", pa.string(), "as recorded"),
        Column("reason", pa.string(), "why it is FAILED; empty: it is not"),
        Column("position", pa.int64(), "next offset to copy", nullable=True),
        Column("source_end", pa.int64(), "next offset that the source cannot show yet", nullable=True),
        Column("lag", pa.int64(), "source_end less position, in offsets", nullable=True),
        Column(
            "behind_s",
            pa.float64(),
            "seconds since the copy held all that the source then had, by the data plane's looks at the source; "
            "not known where none of them saw the copy lack nothing",
            nullable=True,
        ),
        Column("missing", pa.int64(), "the source's end as last seen, less position, in offsets", nullable=True),
        Column(
            "standstill_s",
            pa.float64(),
            f"seconds without writes that a planned failover would take, by an earlier one or a drill{_SAME}",
            nullable=True,
        ),
        Column("proved", pa.int64(), "next offset after what was compared equal; 0: nothing was", nullable=True),
        Column(
            "proof_age_s",
            pa.float64(),
            f"since the partition that was compared the longest ago was; inf: none was{_SAME}",
            nullable=True,
        ),
        Column(
            "sync_age_s",
            pa.float64(),
            f"age of groups' offsets on the destination; inf: no sync yet{_SAME}",
            nullable=True,
        ),
        Column(
            "drill_age_s",
            pa.float64(),
            f"age of the newest drill that came through; inf: none did{_SAME}",
            nullable=True,
        ),
        Column(
            "heartbeat_age_s",
            pa.float64(),
            f"age of the newest heartbeat of each broker that has arrived, of the oldest{_SAME}",
            nullable=True,
        ),
        Column("data_plane", pa.bool_(), f"somebody copies{_SAME}"),
        Column("refused", pa.string(), f"why no planned failover may begin; empty: it may{_SAME}"),
    ),
    index=("topic", "partition"),
    place="{topic}-{partition}: {value}",
    ours=(
        _expect("table_row_count_to_be_between", looks=True, min_value=1),
        _expect("column_values_to_not_be_null", looks=True, column="lag"),
        _expect("column_values_to_not_be_in_set", column="state", value_set=[str(PartitionState.FAILED)]),
        _expect("column_values_to_be_in_set", column="refused", value_set=[""]),
    ),
)
SUITES: Final[Mapping[Judging, Suite]] = MappingProxyType({s.judging: s for s in (PARITY, SYNC, READINESS)})


def as_markdown(suite: Suite) -> Iterator[str]:
    yield "| column | what it holds |"
    yield "|---|---|"
    for column in suite.columns:
        unknown = "; null: not known" if column.nullable and column.name not in suite.fills else ""
        yield f"| `{column.name}` | {column.meaning}{unknown} |"
