"""`mirrorbook import`: parse, call, print."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from mirror_core.cli.command_options import ConfigOption, JsonOption, NameArgument, find_mirror, print_json
from mirror_core.cli.output import print_document, print_line
from mirror_core.cli.tables import print_table
from mirror_core.kafka.config import ClusterConfig, parse_addresses
from mirror_core.model.errors import BadRequest, Indeterminate
from mirror_core.model.files import report_write_errors
from mirror_core.model.findings import Finding
from mirror_core.model.json_documents import FindingDocument, JsonDocument, prints_json, to_finding_documents
from mirror_core.model.names import Offset, compile_name_pattern
from mirror_core.model.text import format_address, format_count, format_shell_command, join_limited
from mirror_core.state.mirror_link import MirrorLink
from mirrorbook_tools.mirrormaker.conversion import Mm2Conversion, choose_mirror_name, convert
from mirrorbook_tools.mirrormaker.mm2_config import Mm2Config, Mm2Flow, read_mm2_config, split_list
from mirrorbook_tools.mirrormaker.reader_survey import ReaderStart, survey_readers
from mirrorbook_tools.mirrormaker.start_offsets import StartCertainty

import_app = typer.Typer(help="Move over from MirrorMaker 2.", no_args_is_help=True)
FileArgument = Annotated[Path, typer.Argument(help="MirrorMaker's properties file, or one connector's.")]
RESET_PROGRAM: Final = "kafka-consumer-groups.sh"


class FlowDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A flow that is enabled, and the commands that mirror the same."""

    source: str
    destination: str
    mirror: str
    commands: tuple[str, ...]


class Mm2ImportDocument(JsonDocument, frozen=True, kw_only=True):
    """What becomes of MirrorMaker 2's properties."""

    file: str
    configuration: str
    """mirrorbook.yaml. Without secrets."""
    flows: tuple[FlowDocument, ...]
    differences: tuple[FindingDocument, ...]
    """What will differ; subjects are flows."""
    settings: tuple[FindingDocument, ...]
    """Without a counterpart, or to be completed; subjects are keys of the file."""


class ReaderStartDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Where one group begins in one partition. Offsets are the next to be read."""

    group: str
    active: bool
    """It has members, and nobody else can commit for it."""
    old_topic: str
    """MirrorMaker's copy."""
    partition: int
    old_offset: int
    by_checkpoint: bool
    """The group has committed nothing in the old copy."""
    checkpoint_source_offset: Offset | None
    """MirrorMaker's newest checkpoint of the group."""
    checkpoint_old_offset: int | None
    topic: str
    certainty: StartCertainty
    offset: Offset | None
    """Null: unknown."""
    repeats: int | None
    """Records that it gets again, at most."""
    current: Offset | None
    """Committed in the new copy."""
    carried: bool
    """The mirror syncs this group from the source: nothing to set."""
    reason: FindingDocument | None


class Mm2OffsetsDocument(JsonDocument, frozen=True, kw_only=True):
    """Where readers of MirrorMaker's copies begin in the mirror's own."""

    mirror: str
    flow: str
    readers: tuple[ReaderStartDocument, ...]
    warnings: tuple[FindingDocument, ...]
    commands: tuple[str, ...]
    """Set the offsets; empty without --output."""


@import_app.command("mm2")
@prints_json(Mm2ImportDocument)
def import_mm2(file: FileArgument, as_json: JsonOption = False) -> None:
    """Print mirrorbook.yaml and the commands that follow from mm2.properties, and what will differ. Asks no cluster."""
    config = read_mm2_config(file)
    conversion = convert(config)
    if as_json:
        print_json(_to_import_document(config, conversion))
        return
    print_line("# mirrorbook.yaml")
    print_document(conversion.configuration.rstrip("\n"))
    for flow, commands in conversion.commands.items():
        print_line("")
        print_line(f"# {flow}")
        for command in commands:
            print_line(command)
    _print_findings("What will differ", conversion.differences)
    _print_findings("Settings without a counterpart, or to be completed", conversion.settings)


def _print_findings(title: str, findings: Iterable[Finding]) -> None:
    print_line("")
    print_line(f"# {title}")
    for finding in findings:
        print_line(f"- {finding}")


def _to_import_document(config: Mm2Config, conversion: Mm2Conversion) -> Mm2ImportDocument:
    return Mm2ImportDocument(
        file=str(config.path),
        configuration=conversion.configuration,
        flows=tuple(
            FlowDocument(
                source=flow.source, destination=flow.target, mirror=choose_mirror_name(flow), commands=commands
            )
            for flow, commands in conversion.commands.items()
        ),
        differences=to_finding_documents(conversion.differences),
        settings=to_finding_documents(conversion.settings),
    )


@import_app.command("mm2-offsets")
@prints_json(Mm2OffsetsDocument)
def import_mm2_offsets(
    name: NameArgument,
    file: FileArgument,
    flow: Annotated[str | None, typer.Option("--flow", help="Which flow of the file, such as 'east->west'.")] = None,
    groups: Annotated[
        list[str] | None, typer.Option("--groups", help="Readers to look up; repeat. Default: all.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Write one group's offsets there, for kafka-consumer-groups.sh.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List where readers of MirrorMaker's copies, such as east.orders, begin in the mirror's. Writes to no cluster.

    Exit code 4: the place of a reader is not known, or there is none.
    """
    patterns = [compile_name_pattern("--groups", expression) for expression in groups or (".*",)]
    properties = read_mm2_config(file)
    link, _ = find_mirror(config, name)
    chosen = properties.find_flow(flow, link.mirror.source, link.mirror.destination)
    warnings = tuple(_warn_other_addresses(properties, chosen, link))
    rows = survey_readers(link, properties.names(chosen), patterns)
    settable = [row for row in rows if row.start.offset is not None and not row.is_carried and row.current is None]
    commands = tuple(_write_offsets(output, settable, link.destination)) if output and settable else ()
    if as_json:
        print_json(
            Mm2OffsetsDocument(
                mirror=name,
                flow=str(chosen),
                readers=tuple(map(_to_reader_document, rows)),
                warnings=to_finding_documents(warnings),
                commands=commands,
            )
        )
    else:
        _print_readers(rows, warnings, commands)
    unknown = [f"{row.group} in {row.old_partition}" for row in rows if row.start.offset is None]
    if unknown or not rows:
        raise Indeterminate(
            f"mirror {name}: {format_count(len(unknown), 'place')} unknown: {join_limited(unknown)}"
            if unknown
            else f"mirror {name}: no group has read a copy of MirrorMaker's on {link.mirror.destination}"
        )


def _print_readers(rows: Sequence[ReaderStart], warnings: Iterable[Finding], commands: Iterable[str]) -> None:
    for warning in warnings:
        print_line(f"warning: {warning}")
    print_table(
        "Readers",
        ["group", "reads", "at", "begins in", "at offset", "certainty", "read again", "because"],
        [
            [
                *(row.group, row.old_partition, row.old_offset, row.new_partition),
                *("" if row.is_carried else row.start.offset, "carried" if row.is_carried else row.start.certainty),
                *(None if row.is_carried else row.start.repeats, "; ".join(map(str, _list_remarks(row)))),
            ]
            for row in rows
        ],
    )
    for command in commands:
        print_line(command)


def _list_remarks(row: ReaderStart) -> Iterator[Finding]:
    if row.is_carried:
        yield Finding("mm2_group_carried", row.group)
        return
    if row.start.reason is not None:
        yield row.start.reason
    if row.is_checkpoint:
        yield Finding("mm2_by_checkpoint", row.group)
    if row.current is not None:
        yield Finding("mm2_has_offset", row.group, offset=row.current)
    if row.is_active:
        yield Finding("mm2_group_active", row.group)


def _warn_other_addresses(properties: Mm2Config, flow: Mm2Flow, link: MirrorLink) -> Iterator[Finding]:
    """The file may be another pair's. Places are proved by content all the same."""
    for alias, cluster in ((flow.source, link.source), (flow.target, link.destination)):
        bootstrap = properties.cluster_properties(alias).get("bootstrap.servers")
        if bootstrap is None or "${" in bootstrap.value:
            continue
        where = f"{properties.path} line {bootstrap.line}: {bootstrap.key}"
        given = parse_addresses(",".join(split_list(bootstrap.value)), where)
        if not set(given) & set(cluster.bootstrap):
            addresses = [format_address(*address) for address in given]
            yield Finding("mm2_other_addresses", cluster.name, line=bootstrap.line, addresses=addresses)


def _write_offsets(output: Path, rows: Sequence[ReaderStart], cluster: ClusterConfig) -> Iterator[str]:
    """The lines that set the offsets: tried first, then done."""
    group, *others = dict.fromkeys(row.group for row in rows)
    if others:  # Kafka's tool is told several groups in another form, and prints stack traces about it
        raise BadRequest(f"--output is for one group: narrow --groups to one of {join_limited((group, *others))}")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows((row.new_partition.topic, row.new_partition.index, row.start.offset) for row in rows)
    with report_write_errors("offsets", output, "choose another --output"), output.open("x", encoding="utf-8") as file:
        file.write(text.getvalue())
    command = (
        *(RESET_PROGRAM, "--bootstrap-server", ",".join(format_address(*one) for one in cluster.bootstrap)),
        *("--command-config", "admin.properties", "--group", group, "--reset-offsets", "--from-file", str(output)),
    )
    yield format_shell_command(*command, "--dry-run")
    yield format_shell_command(*command, "--execute")


def _to_reader_document(row: ReaderStart) -> ReaderStartDocument:
    reason = to_finding_documents([row.start.reason] if row.start.reason else [])
    return ReaderStartDocument(
        group=row.group,
        active=row.is_active,
        old_topic=row.old_partition.topic,
        partition=row.old_partition.index,
        old_offset=row.old_offset,
        by_checkpoint=row.is_checkpoint,
        checkpoint_source_offset=row.checkpoint.source_offset if row.checkpoint else None,
        checkpoint_old_offset=row.checkpoint.copy_offset if row.checkpoint else None,
        topic=row.new_partition.topic,
        certainty=row.start.certainty,
        offset=row.start.offset,
        repeats=row.start.repeats,
        current=row.current,
        carried=row.is_carried,
        reason=reason[0] if reason else None,
    )
