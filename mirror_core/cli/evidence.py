from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirror_core.cli.command_options import (
    ConfigOption,
    EvidenceOption,
    JsonOption,
    NameArgument,
    SparkConfOption,
    find_mirror,
    print_facts,
    print_json,
)
from mirror_core.cli.run_commands import CompareRunner, MasterOption, RunnerOption, make_services
from mirror_core.cli.tables import print_table
from mirror_core.decide.audit_log_check import AuditFlaw, RunConclusion
from mirror_core.decide.drills import MAX_KEPT_RUNS
from mirror_core.evidence.signed_bundle import BundleVerification, PublicKey, VerifiedNote, verify_bundle
from mirror_core.model.errors import BadRequest, Indeterminate, MirrorError
from mirror_core.model.json_documents import JsonDocument, prints_json
from mirror_core.model.text import format_time
from mirror_core.runbook import evidence_bundle
from mirror_core.state.state_records import State

evidence_app = typer.Typer(help="What a run has left: written as a bundle, and verified offline.", no_args_is_help=True)

FolderArgument = Annotated[Path, typer.Argument(help="The run's folder.")]


class BundleDocument(JsonDocument, frozen=True, kw_only=True):
    """A bundle that was written."""

    run: str
    folder: str
    verdict: RunConclusion
    entries: int
    head: str
    """Hash of the last entry."""
    key: str | None
    """The signing key; null: unsigned."""
    copy: str | None
    """Null: no copy is configured."""


class VerifyDocument(JsonDocument, frozen=True, kw_only=True):
    """A bundle's verdict, and what is wrong with it."""

    run: str
    verdict: RunConclusion | None
    """Derived from the entries. Null: `flaws` say why nothing in it can be relied on."""
    why: str
    """Why it is no better."""
    approved_by: str
    """Empty: nobody was asked."""
    entries: int
    files: int
    left_out_files: tuple[str, ...]
    """In a copy: files with topic contents, left out."""
    key: str | None
    """Null: no key was given, so anybody may have written it."""
    forgotten: bool
    """An old drill, forgotten by the state topic."""
    flaws: tuple[AuditFlaw, ...]
    notes: tuple[VerifiedNote, ...]
    """Observations that were added later. They change no verdict."""


class BundleNotGenuine(MirrorError): ...


@evidence_app.command("write")
@prints_json(BundleDocument)
def write_command(
    name: NameArgument,
    run_id: Annotated[str, typer.Option("--run", help="Which run.")],
    evidence: EvidenceOption = None,
    runner: RunnerOption = CompareRunner.LOCAL,
    master: MasterOption = "local[*]",
    conf: SparkConfOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the bundle of a run anew, and its copy, by what the state topic says of it and what lies in the folder."""
    link, state = find_mirror(config, name)
    run = state.runs.get(run_id)
    if run is None or run.plan.mirror != link.mirror.name:
        raise BadRequest(f"mirror {name} has no run {run_id!r}; see `mirrorbook runs list`")
    if not state.audit_lines(run_id):
        raise Indeterminate(f"run {run_id}: the state topic has no audit log of it: there is no evidence")
    services = make_services(link.config.path, runner, master, evidence, conf)
    head = evidence_bundle.write_run_bundle(services, link.config, run, state)
    folder = services.run_dir(run_id)
    written = BundleDocument(
        run=run_id,
        folder=str(folder),
        verdict=head.verdict,
        entries=head.entries,
        head=head.hash,
        key=head.key,
        copy=evidence_bundle.copy_run_bundle(services, link.config, head),
    )
    print_json(written) if as_json else print_facts(_to_bundle_facts(written))


@evidence_app.command("verify")
@prints_json(VerifyDocument)
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
    state = find_mirror(config, known_of)[1] if known_of else State()
    known_entries = state.audit_entries if known_of else None
    verification = verify_bundle(
        folder, PublicKey(public_key) if public_key else None, run_id, known_entries, state.runs.values()
    )
    if as_json:
        print_json(_to_document(verification))
    else:
        print_facts(_to_facts(verification))
        if verification.notes:
            rows = [(format_time(n.at_ms), n.by, n.text, "yes" if n.signed else "NO") for n in verification.notes]
            print_table("Notes added later", ("at", "by", "note", "signed by this key"), rows)
        if verification.flaws:
            print_table("What cannot be", ("where", "what"), [(flaw.where, flaw.what) for flaw in verification.flaws])
    if verification.flaws:
        raise BundleNotGenuine(
            f"{folder}: {verification.flaws[0].where}: {verification.flaws[0].what}; nothing in it can be relied on"
        )
    if verification.key is None:
        raise Indeterminate(f"{folder} is consistent, but without --public-key nobody can tell who wrote it")
    if verification.forgotten:
        raise Indeterminate(
            f"{folder} is consistent and signed by key {verification.key}, but it cannot be compared with the state"
            f" topic, which remembers a mirror's newest {MAX_KEPT_RUNS} drills, and this one is older"
        )


def _to_bundle_facts(written: BundleDocument) -> dict[str, object]:
    return {
        "run": written.run,
        "folder": written.folder,
        "verdict": written.verdict,
        "entries": written.entries,
        "head": written.head,
        "signed by key": written.key or "nobody: unsigned",
        "copy": written.copy or "none is wanted",
    }


def _to_facts(verification: BundleVerification) -> dict[str, object]:
    return {
        "run": verification.run,
        "verdict": (
            "none: nothing in it can be relied on"
            if verification.verdict is None
            else f"{verification.verdict}: {verification.reason}".removesuffix(": ")
        ),
        "approved by": verification.approved_by or "nobody was asked",
        "entries": verification.entries,
        "files": f"{verification.files}{_format_left_out(verification)}",
        "signature": f"of key {verification.key}" if verification.key else "not verified",
    }


def _format_left_out(verification: BundleVerification) -> str:
    if not verification.left_out:
        return ""
    return f", {len(verification.left_out)} of them not here: this is a copy, which leaves out contents of topics"


def _to_document(verification: BundleVerification) -> VerifyDocument:
    return VerifyDocument(
        run=verification.run,
        verdict=verification.verdict,
        why=verification.reason,
        approved_by=verification.approved_by,
        entries=verification.entries,
        files=verification.files,
        left_out_files=verification.left_out,
        key=verification.key,
        forgotten=verification.forgotten,
        flaws=verification.flaws,
        notes=verification.notes,
    )
