"""What commands share. Shell completion prints no errors."""

from __future__ import annotations

import logging
import os
import pwd
import re
import socket
import sys
import termios
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from mirror_core.cli.output import print_line, wrap_text
from mirror_core.kafka.config import Config, find_config, load_config
from mirror_core.model.config_sections import format_source_set
from mirror_core.model.errors import Indeterminate, MirrorError, Refused
from mirror_core.model.json_documents import JsonDocument, format_json
from mirror_core.model.run import list_newest_first
from mirror_core.model.text import escape_invisible, format_items
from mirror_core.model.timing import TIMEOUTS
from mirror_core.state.mirror_link import MirrorLink, find_mirror_link
from mirror_core.state.state_records import State

if TYPE_CHECKING:
    from mirror_core.state.state_records import State


NameSource = Callable[[Config], Iterable[str]]


def complete_clusters(ctx: Any, incomplete: str) -> list[str]:
    return _complete_from(lambda config: config.clusters, ctx, incomplete)


def complete_sets(ctx: Any, incomplete: str) -> list[str]:
    return _complete_from(lambda config: [*config.sets, *map(format_source_set, config.clusters)], ctx, incomplete)


def complete_mirrors(ctx: Any, incomplete: str) -> list[str]:
    return _complete_from(_list_mirrors, ctx, incomplete)


def complete_runs(ctx: Any, incomplete: str) -> list[str]:
    def list_run_ids(config: Config) -> list[str]:
        return [run.id for _, state in _read_states(config) for run in list_newest_first(state.runs.values())]

    return _complete_from(list_run_ids, ctx, incomplete)


def _complete_from(name_source: NameSource, ctx: Any, incomplete: str) -> list[str]:
    logging.disable(logging.CRITICAL)  # this process does nothing else
    path = ctx.params.get("config")
    try:
        candidates = name_source(load_config(find_config(Path(path) if path else None)))
    except MirrorError:
        return []
    return [name for name in candidates if name.startswith(incomplete)]


def _list_mirrors(config: Config) -> list[str]:
    return sorted(m.name for to, state in _read_states(config) for m in state.mirrors.values() if m.destination == to)


def _read_states(config: Config) -> Iterator[tuple[str, State]]:
    from mirror_core.state.mirror_link import read_states  # late: a supervisor's process imports no clients

    for cluster, state_or_error in read_states(config, TIMEOUTS.completion_s):
        if not isinstance(state_or_error, MirrorError):
            yield cluster, state_or_error


SparkConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark's; may be given again and again."),
]


def parse_spark_conf(conf: list[str] | None) -> dict[str, str]:
    """BadRequest for a setting that may not be chosen."""
    from mirror_core.spark.session import check_conf  # late: `--runner local` must work where Spark is not installed

    settings = dict[str, str]()
    for setting in conf or ():
        key, equals, value = setting.partition("=")
        if not equals:
            raise typer.BadParameter(f"{setting!r} is not KEY=VALUE", param_hint="--conf")
        settings[key.strip()] = value
    if settings:
        check_conf(settings)
    return settings


ConfigOption = Annotated[Path | None, typer.Option("--config", help="Path of mirrorbook.yaml.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable.")]
EvidenceOption = Annotated[
    Path | None, typer.Option("--evidence", help="Folder for evidence. Default: `evidence` beside mirrorbook.yaml.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, do nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
NameArgument = Annotated[str, typer.Argument(help="The mirror.", autocompletion=complete_mirrors)]

TopicsOption = Annotated[
    list[str] | None, typer.Option("--topics", help="Regular expression of whole topic names; repeat.")
]
ExcludeTopicsOption = Annotated[
    list[str] | None, typer.Option("--exclude-topics", help='Topics to leave out, also of --topics; repeat. "": none.')
]
GroupsOption = Annotated[list[str] | None, typer.Option("--groups", help='Consumer groups to sync; repeat. "": none.')]
ExcludeGroupsOption = Annotated[
    list[str] | None, typer.Option("--exclude-groups", help='Groups to leave out, also of --groups; repeat. "": none.')
]
PrincipalsOption = Annotated[
    list[str] | None,
    typer.Option("--principals", help="Whose rights are synced, such as 'User:app-.*'; repeat. Denials always are."),
]
ExcludePrincipalsOption = Annotated[
    list[str] | None,
    typer.Option("--exclude-principals", help='Whose rights are not synced, also of --principals; repeat. "": none.'),
]
ExcludeRightsOption = Annotated[
    list[str] | None,
    typer.Option("--exclude-rights", help="Rights not to sync, such as 'READ TOPIC orders.*'; repeat. \"\": none."),
]
ExcludeSettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude-settings", help="Topic settings that are not synced, such as 'segment.*'; repeat. \"\": none."
    ),
]
ReplicationFactorOption = Annotated[
    str | None,
    typer.Option("--replication-factor", help="Of topics that are created: source, default (the destination's), or N."),
]


def check_plan_hash(plan_hash: str | None) -> str | None:
    if plan_hash is not None and not re.fullmatch("[0-9a-f]{64}", plan_hash):
        raise typer.BadParameter(
            f"{plan_hash!r} is no plan's hash, which has 64 digits, 0-9 and a-f: the plan's own screen and --json show"
            " all of them"
        )
    return plan_hash


def to_patterns(texts: list[str] | None) -> tuple[str, ...] | None:
    """Empty texts are dropped, so `--groups ""` is no group."""
    return None if texts is None else tuple(pattern for pattern in texts if pattern)


def load_configuration(path: Path | None) -> Config:
    return load_config(find_config(path))


def find_mirror(path: Path | None, name: str) -> tuple[MirrorLink, State]:
    """A cluster that is dead keeps the state: then what to do about an open run's fence is named."""
    config = load_configuration(path)
    try:
        return find_mirror_link(config, name)
    except Indeterminate as error:
        from mirror_core.mirrors.fence_manual_commands import list_ways_past_fences  # late: in an emergency only

        for line in list_ways_past_fences(config, name):
            error.add_note(line)
        raise


CANCELLED: Final = "cancelled"
UNCHANGED: Final = "nothing was changed"


def check_runner(runner: str) -> None:
    if runner not in ("spark", "local"):
        raise typer.BadParameter("must be spark or local", param_hint="--runner")


def require_confirmation(question: str, yes: bool) -> None:
    """By --yes, or on a terminal; else refused."""
    if yes:
        return
    _prepare_terminal()
    if not _ask(lambda: typer.confirm(wrap_text(question), default=False)):
        raise Refused(CANCELLED, [UNCHANGED], reason_code="not_confirmed")


def require_typed_name(name: str, yes: bool, warning: str = "") -> None:
    """For what gives up records, deletes a topic, or opens a second side. By --yes, or the name typed on a terminal."""
    if yes:
        return
    _prepare_terminal()
    question = f"Type {name} to go on; anything else leaves all as it is"
    question = f"{wrap_text(warning)}.\n{question}" if warning else question
    if _ask(lambda: typer.prompt(question, default="", show_default=False).strip()) != name:
        raise Refused(CANCELLED, [UNCHANGED], reason_code="not_confirmed")


def explain_no_agreement(refusal: Refused) -> str:
    return CANCELLED if refusal.summary == CANCELLED else "; ".join(refusal.reasons)


Reply = TypeVar("Reply")


def _ask(prompt: Callable[[], Reply]) -> Reply | None:
    """None after Ctrl-C or Ctrl-D: a no."""
    try:
        return prompt()
    except typer.Abort:
        print_line("", err=True)
        return None


def _prepare_terminal() -> None:
    """Refused without one. Discards earlier input."""
    if not sys.stdin.isatty():
        raise Refused(
            "not done",
            ["confirmation required: pass --yes, or run it in a terminal"],
            reason_code="confirmation_required",
        )
    with suppress(OSError, termios.error):
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def print_json(document: JsonDocument) -> None:
    typer.echo(format_json(document))


def format_value(value: object) -> object:
    return "unknown" if value is None else value


def print_facts(facts: Mapping[str, object]) -> None:
    for key, value in facts.items():
        print_line(f"{key}: {format_value(value)}", indent="  ")


def refuse_incomplete_list(noun: str, reasons: Sequence[str]) -> None:
    if reasons:
        raise Indeterminate(f"there may be more {noun} than were listed:{format_items(reasons)}")


def find_operator() -> str:
    """The user of this process, and behind root the sudo caller. $LOGNAME and $USER can be forged."""
    user, sudo = _find_user_name(os.getuid()), os.environ.get("SUDO_USER", "")
    sudo_text = f" (sudo by {escape_invisible(sudo)})" if sudo and os.getuid() == 0 else ""
    return f"{user}@{socket.gethostname()}{sudo_text}"


def _find_user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # common in containers
        return f"uid {uid}"
