"""`mirrorbook cluster`: parse, call, print."""

from __future__ import annotations

from typing import Annotated

import typer

from mirror_core.cli import completing
from mirror_core.cli.common import ConfigOption, JsonOption, configuration, print_facts, print_json, print_table
from mirror_core.cli.telling import tell
from mirror_core.cli.unfence import unfence
from mirror_core.mirrors.preflight import ClusterCheck, Right, Verdict
from mirror_core.mirrors.preflight import check as check_cluster
from mirror_core.model.acl import Permission
from mirror_core.model.documents import prints
from mirror_core.model.errors import MissingPermission, RemoteFault
from mirror_core.rights.first_acl import ShutsOut

cluster_app = typer.Typer(help="The clusters of mirrorbook.yaml.", no_args_is_help=True)
cluster_app.command("unfence")(unfence)


@cluster_app.command()
@prints(ClusterCheck)
def check(
    name: Annotated[str, typer.Argument(help="The cluster.", autocompletion=completing.clusters)],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether a cluster answers, and which rights the mirror's principals lack, as kafka-acls.sh lines."""
    found = check_cluster(configuration(config).cluster(name))
    if as_json:
        print_json(found)
    else:
        _print(found)
    if found.problems:
        raise RemoteFault(f"cluster {name}: " + "; ".join(found.problems))
    if not found.roles:
        raise MissingPermission(f"cluster {name}: rights are missing both for a source and for a destination")


WORTH_GRANTING = (Verdict.MISSING, Verdict.SPARED, Verdict.UNKNOWN)


def _print(found: ClusterCheck) -> None:
    print_facts(
        {
            "cluster": f"{found.cluster} ({found.cluster_id})",
            "brokers": ", ".join(found.brokers),
            "features": ", ".join(f"{name} {level}" for name, level in sorted(found.features.items())) or "none",
            "authorizer": found.authorizer,
            "a first ACL shuts others out": found.shuts_out.answer,
            "has all rights as": " and ".join(found.roles) or "neither source nor destination",
        }
    )
    print_table(
        "Rights",
        ["role", "principal", "user", "right", "verdict", "for", "detail"],
        [[r.role, r.principal, r.user, _what(r), r.verdict, r.why, r.detail] for r in found.rights],
    )
    if found.shuts_out.answer is ShutsOut.UNKNOWN:
        tell(f"warning: {found.shuts_out.words}")
    for line in found.advice:
        tell(f"advice: {line}")
    commands = list(dict.fromkeys(r.command for r in found.rights if r.command and r.verdict in WORTH_GRANTING))
    if commands:
        tell("To grant what is missing or could not be tested (narrow `*` to the mirror's topics if you like):")
        for command in commands:
            tell(f"  {command}")


def _what(right: Right) -> str:
    denied = f"{right.permission} " if right.permission == Permission.DENY else ""
    return f"{denied}{right.operation} on {right.resource}"
