"""`mirrorbook mirror runbook`: parse, call, print."""

from __future__ import annotations

from mirror_core.cli.common import ConfigOption, NameArgument, mirror
from mirror_core.cli.telling import tell
from mirror_core.evidence.runbook_page import render
from mirror_core.mirrors.runbook import runbook_of
from mirror_core.model.clock import now_ms


def runbook(name: NameArgument, config: ConfigOption = None) -> None:
    """This mirror's runbook as Markdown, with its own names, commands and times: print it before you need it.

    Asks the destination's state topic and nobody else, so it can be had when the source is dead, too.
    """
    link, state = mirror(config, name)
    tell(render(runbook_of(link, state, now_ms())).rstrip())
