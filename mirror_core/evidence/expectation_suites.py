"""Each table's expectations: Mirrorbook's own always, then user tiers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from mirror_core.decide.expectation_config import (
    NO_EXPECTATIONS,
    TIER_LIMITS,
    JudgedTable,
    UserExpectation,
    UserExpectations,
)
from mirror_core.evidence.table_schemas import Column, build_schema
from mirror_core.model.mirror import PartitionState
from mirror_core.model.sync_state import SyncAction, SyncCategory

TIER: Final = "tier"
_NULL_EXPECTATIONS: Final = frozenset(
    {
        "expect_column_values_to_be_null",
        "expect_column_values_to_not_be_null",
        "expect_column_proportion_of_non_null_values_to_be_between",
        "expect_column_to_exist",
    }
)
"""All other expectations skip nulls, so unknown would pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    type: str
    kwargs: Mapping[str, object]
    by: str = ""
    is_precondition: bool = False
    """If it fails, nothing was judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    table_kind: JudgedTable
    columns: tuple[Column, ...]
    index: tuple[str, ...]
    place_format: str
    """For a failure's place, from the index and `value`."""
    expectations: tuple[Expectation, ...]
    fills: Mapping[str, int | str] = field(default_factory=dict)
    """For nulls in compared columns, which would be skipped."""

    @property
    def schema(self) -> pa.Schema:
        return build_schema(tuple(column for column in self.columns if column.name != TIER))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableExpectations:
    suite: Suite
    user_expectations: UserExpectations = NO_EXPECTATIONS

    @property
    def own(self) -> tuple[UserExpectation, ...]:
        return self.user_expectations.expectations.get(self.suite.table_kind, ())

    def list_expectations(self) -> list[Expectation]:
        by_key: dict[str, Expectation] = {}
        for expectation in (
            *self.suite.expectations,
            *_tier_expectations(self.suite, self.user_expectations),
            *self._list_own(),
        ):
            by_key.setdefault(
                json.dumps([expectation.type, expectation.kwargs], sort_keys=True, default=str), expectation
            )
        return list(by_key.values())

    def _list_own(self) -> Iterator[Expectation]:
        for own_expectation in self.own:
            kwargs = (
                dict(own_expectation.kwargs)
                if own_expectation.tier is None
                else {**own_expectation.kwargs, "row_condition": _tier_condition(own_expectation.tier)}
            )
            yield from _with_preconditions(
                self.suite, Expectation(type=own_expectation.type, kwargs=kwargs, by=own_expectation.location)
            )


def list_columns(kwargs: Mapping[str, object]) -> list[str]:
    names = [kwargs[argument] for argument in ("column", "column_A", "column_B") if argument in kwargs]
    for argument in ("column_list", "column_set"):
        columns = kwargs.get(argument, ())
        names += columns if isinstance(columns, Sequence) and not isinstance(columns, str) else [columns]
    return [str(name) for name in names]


def _tier_expectations(suite: Suite, user_expectations: UserExpectations) -> Iterator[Expectation]:
    for tier in user_expectations.tiers:
        tier_name = f"tier {tier.name}"
        if suite.table_kind is JudgedTable.READINESS:
            yield _expect_rows(_tier_condition(tier.name), tier_name)
            for limit_name, limit in tier.limits.items():
                kwargs: dict[str, Any] = {
                    "column": TIER_LIMITS[limit_name],
                    "max_value": limit,
                    "row_condition": _tier_condition(tier.name),
                }
                yield from _with_preconditions(
                    suite, _expect("column_values_to_be_between", f"{tier_name}: {limit_name} {limit:g}", **kwargs)
                )
        if suite.table_kind is JudgedTable.SYNC and tier.no_drift:
            # Groups commit all the time; the age of their offsets has its own limit.
            condition = f'{_tier_condition(tier.name)} and part != "{SyncCategory.GROUPS}"'
            yield _expect_rows(condition, tier_name)
            kwargs = {"column": "pending", "value_set": [False], "row_condition": condition}
            yield _expect("column_values_to_be_in_set", f"{tier_name}: drift none", **kwargs)


def _with_preconditions(suite: Suite, expectation: Expectation) -> Iterator[Expectation]:
    condition = {
        argument: expectation.kwargs[argument]
        for argument in ("row_condition", "condition_parser")
        if expectation.kwargs.get(argument)
    }
    if "row_condition" in condition:
        yield _expect("table_row_count_to_be_between", expectation.by, is_precondition=True, min_value=1, **condition)
    nullable_columns = {column.name for column in suite.columns if column.nullable} - suite.fills.keys()
    for name in list_columns(expectation.kwargs) if expectation.type not in _NULL_EXPECTATIONS else ():
        if name in nullable_columns:
            yield _expect(
                "column_values_to_not_be_null", expectation.by, is_precondition=True, column=name, **condition
            )
    yield expectation


def _expect_rows(condition: str, expected_by: str) -> Expectation:
    return _expect(
        "table_row_count_to_be_between", expected_by, is_precondition=True, min_value=1, row_condition=condition
    )


def _tier_condition(tier: str) -> str:
    return f'{TIER} == "{tier}"'


def _expect(name: str, expected_by: str = "", *, is_precondition: bool = False, **kwargs: Any) -> Expectation:
    return Expectation(type=f"expect_{name}", kwargs=kwargs, by=expected_by, is_precondition=is_precondition)


_TIER_COLUMN: Final = Column(TIER, pa.string(), "the first tier of your file that names the topic; empty: none does")
_TOPIC_COLUMN: Final = Column("topic", pa.string(), "its topic")
_PARTITION_COLUMN: Final = Column("partition", pa.int32(), "its number")

PARITY: Final = Suite(
    table_kind=JudgedTable.PARITY,
    columns=(
        _TOPIC_COLUMN,
        _PARTITION_COLUMN,
        _TIER_COLUMN,
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
    place_format="{topic}-{partition} chunk {chunk}",
    expectations=(
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
    table_kind=JudgedTable.SYNC,
    columns=(
        Column("part", pa.string(), f"{', '.join(SyncCategory)}"),
        Column("subject", pa.string(), "topic, topic and setting, access control entry, or group and partition"),
        Column("topic", pa.string(), "the topic that it is about; empty: none, or more than one"),
        _TIER_COLUMN,
        Column("source", pa.string(), "the source's value; empty: it has none"),
        Column("destination", pa.string(), "the destination's value; empty: it has none"),
        Column("action", pa.string(), f"what a sync would do: {', '.join(SyncAction)}"),
        Column("pending", pa.bool_(), "a sync would change something"),
        Column("reason", pa.string(), "why so, or why nothing is done"),
    ),
    index=("part", "subject"),
    place_format="{part} {subject}",
    expectations=(
        _expect("table_row_count_to_be_between", is_precondition=True, min_value=1),
        _expect("column_values_to_not_be_in_set", column="action", value_set=[str(SyncAction.REFUSE)]),
    ),
)

_SAME_IN_ROWS: Final = "; of the mirror, the same in each row"
READINESS: Final = Suite(
    table_kind=JudgedTable.READINESS,
    columns=(
        _TOPIC_COLUMN,
        _PARTITION_COLUMN,
        _TIER_COLUMN,
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
            f"seconds without writes that a planned failover would take, by an earlier one or a drill{_SAME_IN_ROWS}",
            nullable=True,
        ),
        Column("proved", pa.int64(), "next offset after what was compared equal; 0: nothing was", nullable=True),
        Column(
            "proof_age_s",
            pa.float64(),
            f"since the partition that was compared the longest ago was; inf: none was{_SAME_IN_ROWS}",
            nullable=True,
        ),
        Column(
            "sync_age_s",
            pa.float64(),
            f"age of groups' offsets on the destination; inf: no sync yet{_SAME_IN_ROWS}",
            nullable=True,
        ),
        Column(
            "drill_age_s",
            pa.float64(),
            f"age of the newest drill that came through; inf: none did{_SAME_IN_ROWS}",
            nullable=True,
        ),
        Column(
            "heartbeat_age_s",
            pa.float64(),
            f"age of the newest heartbeat of each broker that has arrived, of the oldest{_SAME_IN_ROWS}",
            nullable=True,
        ),
        Column("data_plane", pa.bool_(), f"somebody copies{_SAME_IN_ROWS}"),
        Column("refused", pa.string(), f"why no planned failover may begin; empty: it may{_SAME_IN_ROWS}"),
    ),
    index=("topic", "partition"),
    place_format="{topic}-{partition}: {value}",
    expectations=(
        _expect("table_row_count_to_be_between", is_precondition=True, min_value=1),
        _expect("column_values_to_not_be_null", is_precondition=True, column="lag"),
        _expect("column_values_to_not_be_in_set", column="state", value_set=[str(PartitionState.FAILED)]),
        _expect("column_values_to_be_in_set", column="refused", value_set=[""]),
    ),
)
SUITES: Final[Mapping[JudgedTable, Suite]] = MappingProxyType({s.table_kind: s for s in (PARITY, SYNC, READINESS)})


def format_columns(suite: Suite) -> Iterator[str]:
    yield "| column | what it holds |"
    yield "|---|---|"
    for column in suite.columns:
        unknown = "; null: not known" if column.nullable and column.name not in suite.fills else ""
        yield f"| `{column.name}` | {column.meaning}{unknown} |"
