"""Writes a run's evidence bundle, and a copy elsewhere if configured."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from mirror_core.evidence.signed_bundle import (
    NOTES_FILE,
    NOTES_PAGE,
    BundleHead,
    Signer,
    copy_bundle,
    write_bundle,
    write_notes,
)
from mirror_core.kafka.config import Config
from mirror_core.model.errors import BadRequest, MirrorError, Refused
from mirror_core.model.files import report_write_errors
from mirror_core.model.logs import get_logger
from mirror_core.model.run import Run
from mirror_core.model.run_checkpoints import RunNote
from mirror_core.runbook.run_services import Services
from mirror_core.state.journal import list_notes, make_checkpoint
from mirror_core.state.mirror_link import MirrorLink, read_broker_time_ms
from mirror_core.state.non_transactional_writer import write_acknowledged
from mirror_core.state.state_records import State

PAGE_ADVICE: Final = "make room and rights there"

_log = get_logger(__name__)


def write_run_bundle(services: Services, config: Config, run: Run, state: State) -> BundleHead:
    write_notes(services.run_dir(run.id), run, list_notes(state, run.id))
    return write_bundle(services.run_dir(run.id), run, state.audit_lines(run.id), load_signer(config))


def copy_run_bundle(services: Services, config: Config, head: BundleHead) -> str | None:
    if config.evidence_copy is None:
        return None
    target_folder = services.open_copy_folder(config.evidence_copy)
    return copy_bundle(services.run_dir(head.run), head, target_folder, load_signer(config))


MAX_NOTE_LENGTH: Final = 4_000


def add_note(services: Services, link: MirrorLink, state: State, run: Run, text: str, by: str) -> RunNote:
    """Recorded in the state topic, and written beside the run's evidence if this machine has it.

    Refused until the run has ended.
    """
    if not text.strip() or len(text) > MAX_NOTE_LENGTH:
        raise BadRequest(f"a note has 1 to {MAX_NOTE_LENGTH:,} characters; this one has {len(text.strip()):,}")
    if run.ended_ms is None:
        raise Refused(f"run {run.id}: note", [f"it has not ended: it is {run.state}"], reason_code="run_not_done")
    signer, cluster = load_signer(link.config), link.destination
    note = RunNote(run=run.id, at_ms=read_broker_time_ms(cluster), by=by, text=text.strip())
    if signer is not None:
        note = replace(note, key=signer.id)
        note = replace(note, signature=signer.sign(note.content))
    step = f"note-{secrets.token_hex(8)}"
    write_acknowledged(cluster, [make_checkpoint(run.id, step, note)], f"a note on run {run.id}")
    if (folder := services.evidence_dir / f"run-{run.id}").is_dir():
        write_notes(folder, run, (*list_notes(state, run.id), note))
        _copy_notes(services, link.config, folder)
    return note


def _copy_notes(services: Services, config: Config, folder: Path) -> None:
    if config.evidence_copy is not None:
        target_folder = services.open_copy_folder(config.evidence_copy)
        for name in (NOTES_FILE, NOTES_PAGE):
            content = (folder / name).read_bytes()
            target_folder.write(f"copy of {folder.name}", f"{folder.name}/{name}", content, PAGE_ADVICE)


def copy_page_or_report(services: Services, config: Config, page: Path, print_line: Callable[[str], None]) -> None:
    if config.evidence_copy is None:
        return
    description, name = f"copy of {page.parent.name}", f"{page.parent.name}/{page.name}"
    try:
        target_folder = services.open_copy_folder(config.evidence_copy)
        with report_write_errors(description, page, PAGE_ADVICE):
            content = page.read_bytes()
        target_folder.write(description, name, content, PAGE_ADVICE)
    except MirrorError as error:
        print_line(f"the copy of the report could not be written: {error}")
        _log.warning("the copy of %s could not be written: %s", page, error)
    else:
        print_line(f"copy of the report: {target_folder.where}/{name}")


def write_bundle_or_report(
    services: Services, config: Config, run: Run, state: State, print_line: Callable[[str], None]
) -> None:
    retry_advice = f"When that is mended: `mirrorbook evidence write {run.plan.mirror} --run {run.id}`"
    try:
        head = write_run_bundle(services, config, run, state)
        print_line(f"evidence: {head.verdict}; {head.entries} entries, {_format_signature(head)}")
    except MirrorError as error:
        print_line(f"the evidence could not be written: {error}. {retry_advice}")
        _log.warning("run %s: the evidence could not be written: %s", run.id, error)
        return
    try:
        copy_location = copy_run_bundle(services, config, head)
    except MirrorError as error:
        print_line(f"the copy of the evidence could not be written: {error}. {retry_advice}")
        _log.warning("run %s: the copy of the evidence could not be written: %s", run.id, error)
    else:
        if copy_location is not None:
            print_line(f"copy of the evidence: {copy_location}")


def load_signer(config: Config) -> Signer | None:
    """None if no signing key is configured. BadRequest if the key is unusable."""
    return None if config.signing_key is None else Signer(config.signing_key)


def _format_signature(head: BundleHead) -> str:
    return f"signed by key {head.key}" if head.signature else "unsigned"
