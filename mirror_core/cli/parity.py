"""`mirrorbook parity`: parse, call, print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from mirror_core.cli.common import (
    ConfigOption,
    JsonOption,
    NameArgument,
    check_runner,
    configuration,
    print_facts,
    print_json,
    print_table,
)
from mirror_core.cli.spark_conf import SparkConfOption, spark_conf
from mirror_core.cli.telling import tell
from mirror_core.decide.parity import DIGEST, ENDS, RECORDS
from mirror_core.evidence.asked import expected
from mirror_core.evidence.parity_document import ResultDocument, result_document
from mirror_core.evidence.suites import PARITY, Demands
from mirror_core.mirrors.proving import compare_and_remember, note
from mirror_core.model.documents import prints
from mirror_core.model.errors import BadRequest, Indeterminate, MirrorError
from mirror_core.model.files import check_writable
from mirror_core.model.names import Partition
from mirror_core.model.parity import ParityRange, ParityResult, Verdict
from mirror_core.model.units import bytes_per_s
from mirror_core.parity.check import LocalParity
from mirror_core.parity.scope import scope
from mirror_core.parity.so_far import SoFar
from mirror_core.state.link import Link, find
from mirror_core.state.records import State

if TYPE_CHECKING:  # not needed at run time
    from mirror_core.parity.certified import Proof
    from mirror_core.runbook.services import ParityCheck

EXIT: Final = {
    Verdict.PASSED: 0,
    Verdict.FAILED: MirrorError.exit_code,
    Verdict.INDETERMINATE: Indeterminate.exit_code,
}
SHOWN: Final = 20


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A partition out of scope."""

    topic: str
    partition: int
    why: str


class ParityDocument(ResultDocument, frozen=True, kw_only=True):
    """The result of a comparison."""

    mirror: str
    level: int
    left_out: tuple[LeftOut, ...]
    remarks: tuple[str, ...]
    """With certificates: what else to know."""


@prints(ParityDocument)
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
    rate = None if throttle is None else bytes_per_s(throttle)
    if rate is not None and against == "certificates":
        raise BadRequest("--throttle is for a comparison with the source")
    if show_values and (level < RECORDS or against == "certificates"):
        raise BadRequest("--show-values is for a comparison with the source record by record: --level 3")
    loaded = configuration(config)
    more = expected(loaded, PARITY)
    link, state = find(loaded, name)
    demands = Demands(suite=PARITY, more=more.of(link.mirror.name))
    shown = "-values" if show_values else ""  # Airflow's page serves no such folder
    folder = output or Path("evidence") / name / f"parity-{datetime.now(UTC):%Y%m%dT%H%M%SZ}{shown}"
    check_writable("parity report", folder.absolute(), "give another folder: --output")
    if against == "certificates":
        from mirror_core.parity.certified import prove
        from mirror_core.parity.certified_scope import certified, ranges_of

        level = DIGEST
        proof = proof_tasks(runner, master, conf)
        proved = certified(link, state, proof.folder(receipts))
        result, _ = prove(
            link.config.path,
            link.destination.name,
            proved,
            folder.absolute(),
            run=proof.run,
            tasks=proof.tasks,
            demands=demands if demands.own else None,
        )
        note(link, state, result, _beside, ranges_of(proved))
        partitions, left_out, remarks = len(proved.vouched), dict(proved.left_out), [*proved.checked.remarks()]
    else:
        compared = scope(link, state)
        check = parity_check(link.config.path, runner, master, level, conf, demands, rate, values=show_values)
        result = _compared(link, state, compared.ranges, level, whole, check, folder.absolute())
        partitions, left_out = len(compared.ranges), {p: f"it is {s.value}" for p, s in compared.left_out.items()}
        remarks = []
    if as_json:
        found = msgspec.structs.asdict(result_document(result))
        listed = tuple(LeftOut(topic=p.topic, partition=p.index, why=why) for p, why in left_out.items())
        print_json(ParityDocument(**found, mirror=name, level=level, left_out=listed, remarks=tuple(remarks)))
    else:
        _print(name, result, partitions, left_out)
        for remark in remarks:
            tell(remark)
    raise typer.Exit(EXIT[result.verdict])


def _compared(
    link: Link,
    state: State,
    ranges: Sequence[ParityRange],
    level: int,
    whole: bool,
    check: ParityCheck,
    folder: Path,
) -> ParityResult:
    def compare(rest: Sequence[ParityRange], so_far: SoFar | None) -> ParityResult:
        return check(link.mirror.source, link.mirror.destination, rest, folder, so_far)

    if level == ENDS:
        result = compare(ranges, None)
        note(link, state, result, _beside)
        return result
    return compare_and_remember(link, state, ranges, compare, whole=whole, say=_beside)


def _beside(line: str) -> None:
    tell(line, err=True)


def parity_check(
    config: Path,
    runner: str,
    master: str,
    level: int,
    conf: list[str] | None,
    demands: Demands | None,
    throttle: int | None = None,
    *,
    values: bool = False,
) -> ParityCheck:
    if runner == "local":  # Great Expectations only if the user has expectations
        own = demands if demands and demands.own else None
        return LocalParity(config, level=level, demands=own, throttle=throttle, values=values)
    # Imported late: `--runner local` must work where Spark is not installed.
    from mirror_core.spark.parity import SparkParity

    settings = spark_conf(conf)
    return SparkParity(config, master, level=level, demands=demands, conf=settings, throttle=throttle, values=values)


def proof_tasks(runner: str, master: str, conf: list[str] | None) -> Proof:
    if runner == "local":
        from mirror_core.parity.certified import LocalProof

        return LocalProof()
    from mirror_core.spark.parity import SparkProof

    return SparkProof(master, conf=spark_conf(conf))


def _print(name: str, result: ParityResult, partitions: int, left_out: Mapping[Partition, str]) -> None:
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
        rows = [(f.partition, f.offset, f.kind, f.detail) for f in result.findings[:SHOWN]]
        more = f" (the first {SHOWN} of {len(result.findings)})" if len(result.findings) > SHOWN else ""
        print_table(f"differences{more}", ("partition", "offset", "what", "detail"), rows)
    for line in result.unmet[:SHOWN]:
        tell(f"not as expected: {line}")
    for reason in result.reasons[:SHOWN]:
        tell(f"not compared: {reason}")
    for partition, why in list(left_out.items())[:SHOWN]:
        tell(f"not in scope: {partition}: {why}")
