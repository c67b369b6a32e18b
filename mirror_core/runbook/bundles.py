"""Writes a run's evidence bundle into its folder, and a copy elsewhere if configured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from mirror_core.evidence.bundle import Head, copy_bundle, write_bundle
from mirror_core.evidence.signing import Signer
from mirror_core.kafka.config import Config
from mirror_core.model.errors import MirrorError
from mirror_core.model.files import writing
from mirror_core.model.logs import logger
from mirror_core.model.run import Run
from mirror_core.runbook.services import Services
from mirror_core.state.records import State

PAGE_ADVICE: Final = "make room and rights there"

_log = logger(__name__)


def keep(services: Services, config: Config, run: Run, state: State) -> Head:
    return write_bundle(services.run_dir(run.id), run, state.chronicle(run.id), signer_of(config))


def copy(services: Services, config: Config, head: Head) -> str | None:
    """Copy the bundle just written. Returns where; None if no copy is configured."""
    if config.evidence_copy is None:
        return None
    place = services.copies(config.evidence_copy)
    return copy_bundle(services.run_dir(head.run), head, place, signer_of(config))


def copy_page_or_say(services: Services, config: Config, page: Path, say: Callable[[str], None]) -> None:
    if config.evidence_copy is None:
        return
    what, name = f"copy of {page.parent.name}", f"{page.parent.name}/{page.name}"
    try:
        place = services.copies(config.evidence_copy)
        with writing(what, page, PAGE_ADVICE):
            content = page.read_bytes()
        place.write(what, name, content, PAGE_ADVICE)
    except MirrorError as error:
        say(f"the copy of the report could not be written: {error}")
        _log.warning("the copy of %s could not be written: %s", page, error)
    else:
        say(f"copy of the report: {place.where}/{name}")


def keep_or_say(services: Services, config: Config, run: Run, state: State, say: Callable[[str], None]) -> None:
    """Write and copy the bundle of an ended run. Reports failures instead of raising."""
    again = f"When that is mended: `mirrorbook evidence write {run.plan.mirror} --run {run.id}`"
    try:
        head = keep(services, config, run, state)
        say(f"evidence: {head.verdict}; {head.entries} entries, {_signed(head)}")
    except MirrorError as error:
        say(f"the evidence could not be written: {error}. {again}")
        _log.warning("run %s: the evidence could not be written: %s", run.id, error)
        return
    try:
        where = copy(services, config, head)
    except MirrorError as error:
        say(f"the copy of the evidence could not be written: {error}. {again}")
        _log.warning("run %s: the copy of the evidence could not be written: %s", run.id, error)
    else:
        if where is not None:
            say(f"copy of the evidence: {where}")


def signer_of(config: Config) -> Signer | None:
    """None if no signing key is configured. Raises BadRequest if the key is unusable."""
    return None if config.signing_key is None else Signer(config.signing_key)


def _signed(head: Head) -> str:
    return f"signed by key {head.key}" if head.signature else "unsigned"
