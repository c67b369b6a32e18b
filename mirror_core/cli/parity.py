"""`mirrorbook parity`: parse, call, print."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from mirror_core.cli.common import ConfigOption, JsonOption, NameArgument, mirror, print_facts, print_json, print_table
from mirror_core.cli.spark_conf import SparkConfOption, spark_conf
from mirror_core.cli.telling import tell
from mirror_core.evidence.parity_report import result_document
from mirror_core.model.errors import Indeterminate, MirrorError
from mirror_core.model.files import check_writable
from mirror_core.model.parity import ParityResult, Verdict
from mirror_core.parity.check import LocalParity
from mirror_core.parity.scope import Scope, scope
from mirror_core.runbook.services import ParityCheck

EXIT: Final = {
    Verdict.PASSED: 0,
    Verdict.FAILED: MirrorError.exit_code,
    Verdict.INDETERMINATE: Indeterminate.exit_code,
}
SHOWN: Final = 20


def parity_command(
    name: NameArgument,
    level: Annotated[
        int, typer.Option("--level", min=1, max=3, help="1 ends and counts, 2 digests, 3 records where they differ.")
    ] = 3,
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder for the report. Default: ./evidence/NAME/parity-TIME.")
    ] = None,
    runner: Annotated[str, typer.Option("--runner", help="Where tasks run: spark or local (this process).")] = "spark",
    master: Annotated[str, typer.Option("--master", help="Spark master.")] = "local[*]",
    conf: SparkConfOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare both clusters, offset by offset. Exit code 0 passed, 1 failed, 4 indeterminate."""
    if runner not in ("spark", "local"):
        raise typer.BadParameter("must be spark or local", param_hint="--runner")
    link, state = mirror(config, name)
    compared = scope(link, state)
    folder = output or Path("evidence") / name / f"parity-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    check_writable("parity report", folder.absolute(), "give another folder: --output")
    check = _check(link.config.path, runner, master, level, conf)
    result = check(link.mirror.source, link.mirror.destination, compared.ranges, folder.absolute())
    if as_json:
        left_out = [{"topic": p.topic, "partition": p.index, "state": s} for p, s in compared.left_out.items()]
        print_json({"mirror": name, "level": level, **result_document(result), "left_out": left_out})
    else:
        _print(name, result, compared)
    raise typer.Exit(EXIT[result.verdict])


def _check(config: Path, runner: str, master: str, level: int, conf: list[str] | None) -> ParityCheck:
    if runner == "local":
        return LocalParity(config, level=level)
    # Imported late: `--runner local` must work where Spark is not installed.
    from mirror_core.spark.parity import SparkParity

    return SparkParity(config, master, level=level, conf=spark_conf(conf))


def _print(name: str, result: ParityResult, compared: Scope) -> None:
    print_facts(
        {
            "mirror": name,
            "verdict": result.verdict.value,
            "records": result.records,
            "chunks": result.chunks,
            "partitions": len(compared.ranges),
            "seconds": f"{result.seconds:.1f}",
            "report": result.report,
        }
    )
    if result.findings:
        rows = [(f.partition, f.offset, f.kind, f.detail) for f in result.findings[:SHOWN]]
        more = f" (the first {SHOWN} of {len(result.findings)})" if len(result.findings) > SHOWN else ""
        print_table(f"differences{more}", ("partition", "offset", "what", "detail"), rows)
    for reason in result.reasons[:SHOWN]:
        tell(f"not compared: {reason}")
    for partition, state in list(compared.left_out.items())[:SHOWN]:
        tell(f"not in scope: {partition} is {state.value}")
