from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from mirror_core.cli.command_options import (
    ConfigOption,
    JsonOption,
    SparkConfOption,
    check_runner,
    complete_mirrors,
    load_configuration,
    parse_spark_conf,
    print_json,
)
from mirror_core.cli.output import print_line
from mirror_core.cli.parity import (
    LeftOutPartition,
    ParityDocument,
    end_with_result,
    make_proof_tasks,
    prepare_report_folder,
    print_to_stderr,
)
from mirror_core.cli.tables import print_table
from mirror_core.decide.task_assignment import parse_bytes_per_s
from mirror_core.evidence.expectation_suites import PARITY
from mirror_core.evidence.expectations import load_table_expectations
from mirror_core.evidence.file_store import is_url, open_local_folder
from mirror_core.mirrors.incremental_verification import judge_plan, plan_comparison
from mirror_core.model.json_documents import JsonDocument, prints_json
from mirror_core.parity.certificate_check import CertificateRunner
from mirror_core.parity.comparable_ranges import read_parity_scope
from mirror_core.parity.parity_plan import PLAN_NAME, ParityPlan, encode_plan, read_plan
from mirror_core.parity.parity_table import is_table_name, open_table_folder, read_parity_rows, write_rows_locally
from mirror_core.state.mirror_link import find_mirror_link

parity_job_app = typer.Typer(
    no_args_is_help=True, help="A comparison in three parts: planned here, run by your Spark, judged here."
)
PLAN_ADVICE: Final = "make room and rights there, or give another folder (--output)"

PlanArgument = Annotated[str, typer.Argument(metavar="PLAN", help="File or URL that `parity-job plan` has written.")]
TableOption = Annotated[
    str,
    typer.Option(
        "--table",
        metavar="DIR|URL|NAME",
        help="Table of the compared rows: Parquet, or CATALOG.DATABASE.TABLE of Spark.",
    ),
]
RunnerOption = Annotated[str, typer.Option("--runner", help="spark, or local (this process).")]
MasterOption = Annotated[str, typer.Option("--master", help="Spark master.")]


class PlanFile(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of one mirror."""

    mirror: str
    plan: str
    """Its digest: column `plan` of the table."""
    file: str
    spans: int
    bytes: int
    """An estimate, of one side."""
    left_out: tuple[LeftOutPartition, ...]


class ParityPlansDocument(JsonDocument, frozen=True, kw_only=True):
    """What is to be compared."""

    plans: tuple[PlanFile, ...]


class ParityRowsDocument(JsonDocument, frozen=True, kw_only=True):
    """What was compared."""

    mirror: str
    plan: str
    table: str
    spans: int
    compared: int
    """Spans that had no row before."""


@parity_job_app.command("plan")
@prints_json(ParityPlansDocument)
def plan_command(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Mirrors.", autocompletion=complete_mirrors)],
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="Folder for the plans: NAME.json each.")],
    level: Annotated[int, typer.Option("--level", min=2, max=3, help="2 digests, 3 records where they differ.")] = 3,
    whole: Annotated[bool, typer.Option("--whole", help="Compare all anew, not only what was not proved yet.")] = False,
    throttle: Annotated[
        str | None, typer.Option("--throttle", metavar="RATE", help="Of each cluster, all tasks together: 50MB/s.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write what to compare, in spans of about 256 MiB, as the control principal. No secret is in it."""
    loaded = load_configuration(config)
    folder = open_local_folder(str(output), private=True)
    folder.check(PLAN_NAME, PLAN_ADVICE)
    rate = None if throttle is None else parse_bytes_per_s(throttle)
    files = []
    for name in names:
        link, state = find_mirror_link(loaded, name)
        scope = read_parity_scope(link, state)
        plan = plan_comparison(link, state, scope, level=level, compare_all=whole, throttle=rate)
        folder.write(PLAN_NAME, f"{name}.json", encode_plan(plan), PLAN_ADVICE)
        files.append(_describe_plan(plan, folder.path / f"{name}.json"))
    if as_json:
        print_json(ParityPlansDocument(plans=tuple(files)))
    else:
        rows = [(file.mirror, file.spans, f"{file.bytes / 1e9:.1f} GB", file.file) for file in files]
        print_table("planned", ("mirror", "spans", "of each side", "file"), rows)


def _describe_plan(plan: ParityPlan, path: Path) -> PlanFile:
    return PlanFile(
        mirror=plan.mirror,
        plan=plan.digest,
        file=str(path),
        spans=len(plan.spans),
        bytes=sum(span.size_bytes for span in plan.spans),
        left_out=tuple(
            LeftOutPartition(topic=partition.topic, partition=partition.index, why=why)
            for partition, why in plan.left_out
        ),
    )


@parity_job_app.command("run")
@prints_json(ParityRowsDocument)
def run_command(
    plan_file: PlanArgument,
    table: TableOption,
    runner: RunnerOption = "spark",
    master: MasterOption = "local[*]",
    conf: SparkConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare each span that has no row yet; executors write the table. Needs the data principals' secrets only."""
    check_runner(runner)
    plan = _read_plan(plan_file, make_proof_tasks(runner, master, conf))
    if runner == "local":
        compared = write_rows_locally(plan, open_table_folder(table, open_local_folder))
    else:
        from mirror_core.spark.parity_pipeline import write_rows  # late: `--runner local` needs no Spark
        from mirror_core.spark.session import get_spark_session

        is_local = not is_url(table) and not is_table_name(table)
        spark = get_spark_session("mirrorbook-parity", master, None, parse_spark_conf(conf))
        location = open_local_folder(table).path.as_uri() if is_local else table
        # spark-submit sends standard error to standard output, too: there only the document.
        report_line = (lambda line: None) if as_json else print_to_stderr
        compared = write_rows(spark, plan, location, report_line)
    if as_json:
        counts = {"spans": len(plan.spans), "compared": len(compared)}
        print_json(ParityRowsDocument(mirror=plan.mirror, plan=plan.digest, table=table, **counts))
    else:
        print_line(f"{plan.mirror}: {len(compared)} of {len(plan.spans)} spans compared, plan {plan.digest}")


@parity_job_app.command("judge")
@prints_json(ParityDocument)
def judge_command(
    plan_file: PlanArgument,
    table: TableOption,
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder for the report. Default: ./evidence/NAME/parity-TIME.")
    ] = None,
    runner: RunnerOption = "local",
    master: MasterOption = "local[*]",
    conf: SparkConfOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the verdict, write the report, record what is proved. Exit code 0 passed, 1 failed, 4 indeterminate."""
    check_runner(runner)
    tasks = make_proof_tasks(runner, master, conf)
    plan, loaded = _read_plan(plan_file, tasks), load_configuration(config)
    demands = load_table_expectations(loaded, PARITY, plan.mirror)
    link, _ = find_mirror_link(loaded, plan.mirror)
    folder = prepare_report_folder(output, plan.mirror)
    if runner == "spark" and is_table_name(table):
        from mirror_core.spark.parity_pipeline import read_rows  # late: `--runner local` needs no Spark
        from mirror_core.spark.session import get_spark_session

        rows = read_rows(get_spark_session("mirrorbook-parity", master, None, parse_spark_conf(conf)), plan, table)
    else:
        rows = read_parity_rows(plan, open_table_folder(table, tasks.folder))
    judged = demands if runner == "spark" or demands.own else None
    result = judge_plan(link, plan, rows, folder, judged, print_to_stderr)
    end_with_result(plan.mirror, plan.level, result, len(plan.ranges), dict(plan.left_out), as_json=as_json)


def _read_plan(location: str, tasks: CertificateRunner) -> ParityPlan:
    folder, _, name = location.rpartition("/")
    return read_plan(tasks.folder(folder) if is_url(location) else open_local_folder(folder or "."), name)
