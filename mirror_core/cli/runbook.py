"""`mirrorbook mirror runbook`: parse, call, print."""

from __future__ import annotations

from mirror_core.cli.common import ConfigOption, NameArgument, find_mirror
from mirror_core.cli.telling import print_line
from mirror_core.evidence.runbook_page import render_runbook
from mirror_core.mirrors.runbook import collect_runbook
from mirror_core.model.clock import now_ms


def runbook(name: NameArgument, config: ConfigOption = None) -> None:
    """This mirror's runbook as Markdown, with its own names, commands and times: print it before you need it.

    Asks the destination's state topic and nobody else, so it can be had when the source is dead, too.
    """
    link, state = find_mirror(config, name)
    print_line(render_runbook(collect_runbook(link, state, now_ms())).rstrip())
