"""`mirrorbook mirror check`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirror_core.cli.common import (
    ConfigOption,
    JsonOption,
    NameArgument,
    configuration,
    print_facts,
    print_json,
    print_table,
)
from mirror_core.cli.parity import EXIT
from mirror_core.cli.telling import tell
from mirror_core.evidence.asked import expected
from mirror_core.evidence.suites import READINESS, SYNC
from mirror_core.model.documents import prints
from mirror_core.model.files import check_writable
from mirror_core.runbook.checking import ADVICE, WHAT, CheckDocument, Checked
from mirror_core.runbook.checking import check as check_mirror
from mirror_core.state.link import find


@prints(CheckDocument)
def check(
    name: NameArgument,
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder for the tables and Data Docs. Default: none are written.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge its readiness, and what a sync would find. Exit code 0 passed, 1 failed, 4 indeterminate."""
    loaded = configuration(config)
    more = expected(loaded, READINESS, SYNC)
    if output is not None:
        output = output.absolute()
        check_writable(WHAT, output, ADVICE)
    link, state = find(loaded, name)
    checked = check_mirror(link, state, more.of(link.mirror.name), output)
    if as_json:
        print_json(checked.document)
    else:
        _print(checked)
    raise typer.Exit(EXIT[checked.verdict])


def _print(checked: Checked) -> None:
    looked_at = {f"{suite}": f"{one.verdict}, {checked.rows[suite]} rows" for suite, one in checked.judged.items()}
    tiers = ", ".join(checked.tiers) or "none"
    print_facts({"mirror": checked.mirror, "verdict": checked.verdict, "tiers": tiers, **looked_at})
    rows = [
        (suite, one.what, one.by or "Mirrorbook", "no" if one.known else "not known", one.where)
        for suite, judged in checked.judged.items()
        for one in judged.held
        if not one.held
    ]
    if rows:
        print_table("Not as expected", ("suite", "expectation", "by", "held", "where"), rows)
    for line in checked.trouble:
        tell(f"not looked at: {line}")
    if checked.report:
        print_facts({"report": checked.report})
