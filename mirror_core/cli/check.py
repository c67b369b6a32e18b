"""`mirrorbook mirror check`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirror_core.cli.common import (
    ConfigOption,
    JsonOption,
    NameArgument,
    load_configuration,
    print_facts,
    print_json,
    print_table,
)
from mirror_core.cli.parity import EXIT_CODES
from mirror_core.cli.telling import print_line
from mirror_core.evidence.asked import load_expectations
from mirror_core.evidence.suites import READINESS, SYNC
from mirror_core.model.documents import prints_json
from mirror_core.model.files import check_writable
from mirror_core.runbook.checking import CHECK_ADVICE, CHECK_NAME, CheckDocument, MirrorCheck
from mirror_core.runbook.checking import check_mirror as check_mirror
from mirror_core.state.link import find_mirror_link


@prints_json(CheckDocument)
def check(
    name: NameArgument,
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder for the tables and Data Docs. Default: none are written.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge its readiness, and what a sync would find. Exit code 0 passed, 1 failed, 4 indeterminate."""
    loaded = load_configuration(config)
    user_expectations = load_expectations(loaded, READINESS, SYNC)
    if output is not None:
        output = output.absolute()
        check_writable(CHECK_NAME, output, CHECK_ADVICE)
    link, state = find_mirror_link(loaded, name)
    checked = check_mirror(link, state, user_expectations.for_mirror(link.mirror.name), output)
    if as_json:
        print_json(checked.document)
    else:
        _print_check(checked)
    raise typer.Exit(EXIT_CODES[checked.verdict])


def _print_check(checked: MirrorCheck) -> None:
    suite_facts = {
        f"{suite}": f"{expectation.verdict}, {checked.rows[suite]} rows"
        for suite, expectation in checked.judged.items()
    }
    tiers = ", ".join(checked.tiers) or "none"
    print_facts({"mirror": checked.mirror, "verdict": checked.verdict, "tiers": tiers, **suite_facts})
    rows = [
        (
            suite,
            expectation.what,
            expectation.by or "Mirrorbook",
            "no" if expectation.known else "not known",
            expectation.where,
        )
        for suite, judged in checked.judged.items()
        for expectation in judged.held
        if not expectation.held
    ]
    if rows:
        print_table("Not as expected", ("suite", "expectation", "by", "held", "where"), rows)
    for line in checked.trouble:
        print_line(f"not looked at: {line}")
    if checked.report:
        print_facts({"report": checked.report})
