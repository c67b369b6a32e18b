from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import msgspec
import typer

from mirror_core.cli.command_options import (
    ConfigOption,
    JsonOption,
    NameArgument,
    SparkConfOption,
    check_runner,
    load_configuration,
    parse_spark_conf,
    print_facts,
    print_json,
)
from mirror_core.cli.output import print_line
from mirror_core.cli.tables import print_table
from mirror_core.decide.parity_result import LEVEL_DIGEST, LEVEL_ENDS, LEVEL_RECORDS
from mirror_core.decide.task_assignment import parse_bytes_per_s
from mirror_core.evidence.expectation_suites import PARITY, TableExpectations
from mirror_core.evidence.expectations import load_table_expectations
from mirror_core.evidence.parity_report import ParityResultDocument, to_parity_document
from mirror_core.mirrors.incremental_verification import compare_and_record, record_differences
from mirror_core.model.errors import BadRequest, Indeterminate, MirrorError
from mirror_core.model.files import check_writable
from mirror_core.model.json_documents import prints_json
from mirror_core.model.names import Partition
from mirror_core.model.parity_verdict import ParityRange, ParityResult, ParityVerdict
from mirror_core.parity.check import LocalParity, OnParityProgress
from mirror_core.parity.comparable_ranges import read_parity_scope
from mirror_core.state.mirror_link import MirrorLink, find_mirror_link
from mirror_core.state.state_records import State

if TYPE_CHECKING:  # not needed at run time
    from mirror_core.parity.certificate_check import CertificateRunner
    from mirror_core.runbook.run_services import ParityCheck

EXIT_CODES: Final = {
    ParityVerdict.PASSED: 0,
    ParityVerdict.FAILED: MirrorError.exit_code,
    ParityVerdict.INDETERMINATE: Indeterminate.exit_code,
}
MAX_LISTED: Final = 20


class LeftOutPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition out of scope."""

    topic: str
    partition: int
    why: str


class ParityDocument(ParityResultDocument, frozen=True, kw_only=True):
    """The result of a comparison."""

    mirror: str
    level: int
    left_out: tuple[LeftOutPartition, ...]
    remarks: tuple[str, ...]
    """With certificates: what else to know."""


@prints_json(ParityDocument)
def parity_command(
    name: NameArgument,
    level: Annotated[
        int, typer.Option("--level", min=1, max=3, help="1 ends and counts, 2 digests, 3 records where they differ.")
    ] = 3,
    against: Annotated[
        str, typer.Option("--against", help="source, or certificates: what receipts vouch for, without the source.")
    ] = "source",
    receipts: Annotated[
        str, typer.Option("--receipts", metavar="DIR|URL", help="Where `replicate` keeps them.")
    ] = "receipts",
    whole: Annotated[bool, typer.Option("--whole", help="Compare all anew, not only what was not proved yet.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder for the report. Default: ./evidence/NAME/parity-TIME.")
    ] = None,
    runner: Annotated[str, typer.Option("--runner", help="Where tasks run: spark or local (this process).")] = "spark",
    master: Annotated[str, typer.Option("--master", help="Spark master.")] = "local[*]",
    conf: SparkConfOption = None,
    throttle: Annotated[
        str | None, typer.Option("--throttle", metavar="RATE", help="Of each cluster, all tasks together: 50MB/s.")
    ] = None,
    show_values: Annotated[
        bool, typer.Option("--show-values", help="Show what differs, keys and values, and not only sizes and digests.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare both clusters, offset by offset. Exit code 0 passed, 1 failed, 4 indeterminate."""
    check_runner(runner)
    if against not in ("source", "certificates"):
        raise typer.BadParameter("must be source or certificates", param_hint="--against")
    rate = None if throttle is None else parse_bytes_per_s(throttle)
    if rate is not None and against == "certificates":
        raise BadRequest("--throttle is for a comparison with the source")
    if show_values and (level < LEVEL_RECORDS or against == "certificates"):
        raise BadRequest("--show-values is for a comparison with the source record by record: --level 3")
    loaded = load_configuration(config)
    demands = load_table_expectations(loaded, PARITY, name)
    link, state = find_mirror_link(loaded, name)
    folder = prepare_report_folder(output, name, "-values" if show_values else "")  # Airflow's page serves no such one
    if against == "certificates":
        from mirror_core.parity.certificate_check import check_certificates, read_certificate_scope, to_certified_ranges

        level = LEVEL_DIGEST
        proof = make_proof_tasks(runner, master, conf)
        certified_scope = read_certificate_scope(link, state, proof.folder(receipts))
        result, _ = check_certificates(
            link.config.path,
            link.mirror.destination_identity,
            certified_scope,
            folder,
            run=proof.run,
            tasks=proof.tasks,
            demands=demands if demands.own else None,
        )
        record_differences(link, state, result, print_to_stderr, to_certified_ranges(certified_scope))
        partitions, left_out, remarks = (
            len(certified_scope.certified),
            dict(certified_scope.left_out),
            [*certified_scope.checked.format_remarks()],
        )
    else:
        compared = read_parity_scope(link, state)
        check = make_parity_check(link.config.path, runner, master, level, conf, demands, rate, values=show_values)
        result = _compare(link, state, compared.ranges, level, whole, check, folder)
        partitions, left_out = len(compared.ranges), {p: f"it is {s.value}" for p, s in compared.left_out.items()}
        remarks = []
    end_with_result(name, level, result, partitions, left_out, remarks, as_json=as_json)


def end_with_result(
    name: str,
    level: int,
    result: ParityResult,
    partitions: int,
    left_out: Mapping[Partition, str],
    remarks: Sequence[str] = (),
    *,
    as_json: bool,
) -> NoReturn:
    if as_json:
        result_fields = msgspec.structs.asdict(to_parity_document(result))
        left_out_partitions = tuple(
            LeftOutPartition(topic=p.topic, partition=p.index, why=reason) for p, reason in left_out.items()
        )
        print_json(
            ParityDocument(
                **result_fields, mirror=name, level=level, left_out=left_out_partitions, remarks=tuple(remarks)
            )
        )
    else:
        _print_result(name, result, partitions, left_out)
        for remark in remarks:
            print_line(remark)
    raise typer.Exit(EXIT_CODES[result.verdict])


def _compare(
    link: MirrorLink,
    state: State,
    ranges: Sequence[ParityRange],
    level: int,
    whole: bool,
    check: ParityCheck,
    folder: Path,
) -> ParityResult:
    def compare(ranges_left: Sequence[ParityRange], so_far: OnParityProgress | None) -> ParityResult:
        return check(link.mirror.source_identity, link.mirror.destination_identity, ranges_left, folder, so_far)

    if level == LEVEL_ENDS:
        result = compare(ranges, None)
        record_differences(link, state, result, print_to_stderr)
        return result
    return compare_and_record(link, state, ranges, compare, compare_all=whole, report=print_to_stderr)


def prepare_report_folder(output: Path | None, name: str, suffix: str = "") -> Path:
    folder = output or Path("evidence") / name / f"parity-{datetime.now(UTC):%Y%m%dT%H%M%SZ}{suffix}"
    check_writable("parity report", folder.absolute(), "give another folder: --output")
    return folder.absolute()


def print_to_stderr(line: str) -> None:
    print_line(line, err=True)


def make_parity_check(
    config: Path,
    runner: str,
    master: str,
    level: int,
    conf: list[str] | None,
    demands: TableExpectations | None,
    throttle: int | None = None,
    *,
    values: bool = False,
) -> ParityCheck:
    if runner == "local":  # Great Expectations only if the user has expectations
        own_expectations = demands if demands and demands.own else None
        return LocalParity(config, level=level, demands=own_expectations, throttle=throttle, values=values)
    # Imported late: `--runner local` must work where Spark is not installed.
    from mirror_core.spark.parity_job import SparkParity

    settings = parse_spark_conf(conf)
    return SparkParity(config, master, level=level, demands=demands, conf=settings, throttle=throttle, values=values)


def make_proof_tasks(runner: str, master: str, conf: list[str] | None) -> CertificateRunner:
    if runner == "local":
        from mirror_core.parity.certificate_check import LocalCertificateRunner

        return LocalCertificateRunner()
    from mirror_core.spark.parity_job import SparkCertificateCheck

    return SparkCertificateCheck(master, conf=parse_spark_conf(conf))


def _print_result(name: str, result: ParityResult, partitions: int, left_out: Mapping[Partition, str]) -> None:
    print_facts(
        {
            "mirror": name,
            "verdict": result.verdict.value,
            "records": result.records,
            "chunks": result.chunks,
            "partitions": partitions,
            "seconds": f"{result.seconds:.1f}",
            "report": result.report,
        }
    )
    if result.findings:
        rows = [(f.partition, f.offset, f.kind, f.detail) for f in result.findings[:MAX_LISTED]]
        count_text = f" (the first {MAX_LISTED} of {len(result.findings)})" if len(result.findings) > MAX_LISTED else ""
        print_table(f"differences{count_text}", ("partition", "offset", "what", "detail"), rows)
    for line in result.unmet_expectations[:MAX_LISTED]:
        print_line(f"not as expected: {line}")
    for reason in result.reasons[:MAX_LISTED]:
        print_line(f"not compared: {reason}")
    for partition, exclusion in list(left_out.items())[:MAX_LISTED]:
        print_line(f"not in scope: {partition}: {exclusion}")
