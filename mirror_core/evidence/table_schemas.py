"""Columns of tables as Arrow schema and DDL. Offsets are int64, times UTC."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Column:
    """Null means unknown."""

    name: str
    type: pa.DataType = field(repr=False)
    meaning: str
    nullable: bool = False

    @property
    def arrow_field(self) -> pa.Field[Any]:
        return pa.field(self.name, self.type, nullable=self.nullable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    name: str
    folders: tuple[Column, ...] = ()
    """Columns in the path, `name=value`, and in no file."""
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pa.Schema:
        """Without those in the path."""
        return build_schema(self.columns)

    @property
    def ddl(self) -> str:
        """All columns, as Spark wants them."""
        return build_ddl(self.columns + self.folders)


def build_schema(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema([column.arrow_field for column in columns])


def build_ddl(columns: tuple[Column, ...]) -> str:
    return ", ".join(format_ddl(column.arrow_field) for column in columns)


_DDL_BY_TYPE: Final = {
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.timestamp("ms", tz="UTC"): "timestamp",
    pa.timestamp("us", tz="UTC"): "timestamp",
}


def format_ddl(column: pa.Field[Any], separator: str = " ") -> str:
    """`separator`: between name and type, a colon inside of structs."""
    return f"{column.name}{separator}{format_ddl_type(column.type)}{'' if column.nullable else ' not null'}"


def format_ddl_type(arrow_type: Any) -> str:
    if pa.types.is_list(arrow_type):
        return f"array<{format_ddl_type(arrow_type.value_type)}>"
    if pa.types.is_struct(arrow_type):
        fields = (arrow_type.field(index) for index in range(arrow_type.num_fields))
        return f"struct<{', '.join(format_ddl(one, ': ') for one in fields)}>"
    return _DDL_BY_TYPE[arrow_type]


def format_table(table: Table) -> Iterator[str]:
    yield "| column | type | what it holds |"
    yield "|---|---|---|"
    for column in table.columns + table.folders:
        null = "" if not column.nullable or "null:" in column.meaning else "; null: not known"
        place = ", in the path" if column in table.folders else ""
        yield f"| `{column.name}` | {format_ddl_type(column.type)}{place} | {column.meaning}{null} |"


_MIRROR: Final = Column("mirror", pa.string(), "the mirror's name")
_FINDINGS: Final = pa.list_(
    pa.struct(
        [
            pa.field("offset", pa.int64()),
            pa.field("kind", pa.string(), nullable=False),
            pa.field("detail", pa.string(), nullable=False),
        ]
    )
)
PARITY_ROWS: Final = Table(
    name="parity_rows",
    folders=(
        _MIRROR,
        Column("plan", pa.string(), "digest of the plan"),
        Column("wave", pa.string(), "the part of a job that wrote it, with others or not at all"),
    ),
    columns=(
        Column("span", pa.string(), "the plan's name of the span: topic, partition, first offset"),
        Column("reading", pa.string(), "one for each time that the span was read; more than one: it was read twice"),
        Column("topic", pa.string(), "its topic"),
        Column("partition", pa.int32(), "its number"),
        Column("chunk", pa.int64(), "number of the piece of the log"),
        Column("start", pa.int64(), "first offset of the piece"),
        Column("end", pa.int64(), "next offset after it"),
        Column("level", pa.int32(), "how it was compared: 2 digests, 3 records; 0: the source had deleted it"),
        Column("src_count", pa.int64(), "records of the source; null: not read", nullable=True),
        Column("dst_count", pa.int64(), "the same of the destination", nullable=True),
        Column("src_digest", pa.string(), "digest of the source's records, by a key of this reading; empty: none"),
        Column("dst_digest", pa.string(), "the same of the destination"),
        Column("differing", pa.int64(), "differences found"),
        Column("findings", _FINDINGS, "the differences: offset, kind, detail. Sizes and digests, no contents"),
        Column("damaged", _FINDINGS, "batches that cannot be read"),
        Column("error", pa.string(), "why it could not be compared; empty: it was"),
        Column("compared_at", pa.timestamp("us", tz="UTC"), "when"),
    ),
)
_PIECES: Final = pa.list_(
    pa.struct(
        [
            pa.field("first", pa.int64(), nullable=False),
            pa.field("next", pa.int64(), nullable=False),
            pa.field("records", pa.int64(), nullable=False),
            pa.field("digest", pa.string(), nullable=False),
        ]
    )
)
RECEIPTS: Final = Table(
    name="receipts",
    folders=(_MIRROR, Column("date", pa.string(), "UTC day in which it began: 2026-11-29")),
    columns=(
        Column("generation", pa.int64(), "which driver: a number that grows"),
        Column("epoch", pa.int64(), "its epoch; of a compacted day the last one"),
        Column("task", pa.int32(), "task of the epoch"),
        Column("topic", pa.string(), "its topic"),
        Column("partition", pa.int32(), "its number"),
        Column("first", pa.int64(), "first offset copied"),
        Column("next", pa.int64(), "next offset after the last one copied"),
        Column("records", pa.int64(), "records copied"),
        Column("gaps", pa.int64(), "offsets filled without a record", nullable=True),
        Column("batches", pa.int64(), "batches sent"),
        Column("bytes", pa.int64(), "bytes sent"),
        Column("pieces", _PIECES, "what it vouches for: offsets, records, digest (a sum, hexadecimal)", nullable=True),
        Column("source_topic_id", pa.string(), "id of the source's topic", nullable=True),
        Column("destination_topic_id", pa.string(), "id of the destination's topic", nullable=True),
        Column("source_end", pa.int64(), "the source's last stable offset, as seen at the end", nullable=True),
        Column("started", pa.timestamp("ms", tz="UTC"), "begin"),
        Column("ended", pa.timestamp("ms", tz="UTC"), "end"),
    ),
)
_HEADERS: Final = pa.list_(
    pa.struct(
        [
            pa.field("name", pa.binary(), nullable=False),  # binary: header names need not be UTF-8
            pa.field("value", pa.binary()),
        ]
    )
)
RECORD_COLUMNS: Final = (
    Column("topic", pa.string(), "its topic"),
    Column("partition", pa.int32(), "its number"),
    Column("offset", pa.int64(), "its offset"),
    Column("timestamp_ms", pa.int64(), "milliseconds since 1970"),
    Column("timestamp_type", pa.string(), "CreateTime or LogAppendTime"),
    Column("key", pa.binary(), "its key", nullable=True),
    Column("value", pa.binary(), "its value", nullable=True),
    Column(
        "headers",
        _HEADERS,
        "name and value of each. More than 65,536 are one, `mirrorbook.undecoded-headers`: count and bytes, as stored",
    ),
)
SALVAGE: Final = Table(
    name="salvage",
    columns=(
        *RECORD_COLUMNS,
        Column(
            "match",
            pa.string(),
            "what the other cluster has of its key since the divergence: missing, same value, conflicting, no key;"
            " null: no other cluster was compared",
            nullable=True,
        ),
    ),
)
SALVAGE_REPLAYS: Final = Table(
    name="salvage_replays",
    columns=(
        Column("replay", pa.string(), "the hash that the dry run showed"),
        Column("topic", pa.string(), "the saved topic"),
        Column("partition", pa.int32(), "its number, in both topics"),
        Column("target_cluster", pa.string(), "id of the cluster that was written"),
        Column("target_topic", pa.string(), "the topic that was written"),
        Column("selected", pa.int64(), "records chosen"),
        Column("written", pa.int64(), "of these, in the target topic; null: no task reported it", nullable=True),
        Column("written_before", pa.int64(), "of these, by earlier attempts", nullable=True),
        Column("first_offset", pa.int64(), "first offset in the target topic; null: nothing is written", nullable=True),
        Column("last_offset", pa.int64(), "last offset in the target topic; null: nothing is written", nullable=True),
        Column("outcome", pa.string(), "written: each once; incomplete: a repeat writes the rest; unknown; differs"),
        Column("error", pa.string(), "why it is not written; empty: it is"),
        Column("ended", pa.timestamp("ms", tz="UTC"), "when"),
    ),
)
TABLES: Final = (PARITY_ROWS, RECEIPTS, SALVAGE, SALVAGE_REPLAYS)
