"""`mirrorbook evidence`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirror_core.cli.common import ConfigOption, JsonOption, NameArgument, mirror, print_facts, print_json, print_table
from mirror_core.cli.conducting import EvidenceOption, MasterOption, Runner, RunnerOption, services_of
from mirror_core.cli.spark_conf import SparkConfOption
from mirror_core.decide.drills import KEPT
from mirror_core.decide.evidence import Conclusion, Flaw
from mirror_core.evidence.signing import PublicKey
from mirror_core.evidence.verify import Verified, verify
from mirror_core.model.documents import Document, prints
from mirror_core.model.errors import BadRequest, Indeterminate, MirrorError
from mirror_core.runbook import bundles
from mirror_core.state.records import State

evidence_app = typer.Typer(help="What a run has left: written as a bundle, and verified offline.", no_args_is_help=True)

FolderArgument = Annotated[Path, typer.Argument(help="The run's folder.")]


class BundleDocument(Document, frozen=True, kw_only=True):
    """A bundle that was written."""

    run: str
    folder: str
    verdict: Conclusion
    entries: int
    head: str
    """Hash of the last entry."""
    key: str | None
    """The signing key; null: unsigned."""
    copy: str | None
    """Null: no copy is configured."""


class VerifyDocument(Document, frozen=True, kw_only=True):
    """A bundle's verdict, and what is wrong with it."""

    run: str
    verdict: Conclusion
    """Derived from the entries."""
    why: str
    """Why it is no better."""
    approved_by: str
    """Empty: nobody was asked."""
    entries: int
    files: int
    not_here: tuple[str, ...]
    """In a copy: files with topic contents, left out."""
    key: str | None
    """Null: no key was given, so anybody may have written it."""
    forgotten: bool
    """An old drill, forgotten by the state topic."""
    flaws: tuple[Flaw, ...]


class NotGenuine(MirrorError): ...


@evidence_app.command("write")
@prints(BundleDocument)
def write_command(
    name: NameArgument,
    run_id: Annotated[str, typer.Option("--run", help="Which run.")],
    evidence: EvidenceOption = None,
    runner: RunnerOption = Runner.LOCAL,
    master: MasterOption = "local[*]",
    conf: SparkConfOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the bundle of a run anew, and its copy, by what the state topic says of it and what lies in the folder."""
    link, state = mirror(config, name)
    run = state.runs.get(run_id)
    if run is None or run.plan.mirror != link.mirror.name:
        raise BadRequest(f"mirror {name} has no run {run_id!r}; see `mirrorbook runs list`")
    if not state.chronicle(run_id):
        raise Indeterminate(f"run {run_id}: an older Mirrorbook began it, and told nothing of it: there is no evidence")
    services = services_of(link.config.path, runner, master, evidence, conf)
    head = bundles.keep(services, link.config, run, state)
    folder = services.run_dir(run_id)
    written = BundleDocument(
        run=run_id,
        folder=str(folder),
        verdict=head.verdict,
        entries=head.entries,
        head=head.hash,
        key=head.key,
        copy=bundles.copy(services, link.config, head),
    )
    print_json(written) if as_json else print_facts(_bundle_facts(written))


@evidence_app.command("verify")
@prints(VerifyDocument)
def verify_command(
    folder: FolderArgument,
    public_key: Annotated[
        Path | None, typer.Option("--public-key", help="PEM file. Without it only what is inconsistent is found.")
    ] = None,
    run_id: Annotated[str | None, typer.Option("--run", help="It must be the evidence of this run.")] = None,
    known_of: Annotated[
        str | None, typer.Option("--mirror", help="Compare it with what this mirror's state topic says, too.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Derive the verdict of a run from its evidence, offline. Exit code 0 genuine, 1 not, 4 unknown: no key."""
    state = mirror(config, known_of)[1] if known_of else State()
    known = state.told if known_of else None
    found = verify(folder, PublicKey(public_key) if public_key else None, run_id, known, state.runs.values())
    if as_json:
        print_json(_document(found))
    else:
        print_facts(_facts(found))
        if found.flaws:
            print_table("What cannot be", ("where", "what"), [(flaw.where, flaw.what) for flaw in found.flaws])
    if found.flaws:
        raise NotGenuine(f"{folder}: {found.flaws[0].where}: {found.flaws[0].what}; nothing in it can be relied on")
    if found.key is None:
        raise Indeterminate(f"{folder} is consistent, but without --public-key nobody can tell who wrote it")
    if found.forgotten:
        raise Indeterminate(
            f"{folder} is consistent and signed by key {found.key}, but it cannot be compared with the state topic, "
            f"which remembers a mirror's newest {KEPT} drills, and this one is older"
        )


def _bundle_facts(written: BundleDocument) -> dict[str, object]:
    return {
        "run": written.run,
        "folder": written.folder,
        "verdict": written.verdict,
        "entries": written.entries,
        "head": written.head,
        "signed by key": written.key or "nobody: unsigned",
        "copy": written.copy or "none is wanted",
    }


def _facts(found: Verified) -> dict[str, object]:
    return {
        "run": found.run,
        "verdict": found.verdict if not found.why else f"{found.verdict}: {found.why}",
        "approved by": found.approved_by or "nobody was asked",
        "entries": found.entries,
        "files": f"{found.files}{_away(found)}",
        "signature": f"of key {found.key}" if found.key else "not verified",
    }


def _away(found: Verified) -> str:
    if not found.not_here:
        return ""
    return f", {len(found.not_here)} of them not here: this is a copy, which leaves out contents of topics"


def _document(found: Verified) -> VerifyDocument:
    return VerifyDocument(
        run=found.run,
        verdict=found.verdict,
        why=found.why,
        approved_by=found.approved_by,
        entries=found.entries,
        files=found.files,
        not_here=found.not_here,
        key=found.key,
        forgotten=found.forgotten,
        flaws=found.flaws,
    )
