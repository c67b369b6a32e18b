"""The file that lifts a run's fence if the destination dies. Written before any denial."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from mirror_core.evidence.fence_file import FenceFile, fence_file_path, list_names, read_fence_file, write_fence_file
from mirror_core.model.acl import Acl, Resource
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import BadRequest
from mirror_core.model.files import Unwritable
from mirror_core.model.shell_command import format_shell_command
from mirror_core.runbook.acts import StepContext
from mirror_core.runbook.services import EVIDENCE_ADVICE, Services

LIFT_COMMAND_KEY: Final = "if_the_destination_dies"


class LiftFile:
    """Writes what is about to be denied, whenever it grows."""

    def __init__(self, context: StepContext, *, needed: bool = True) -> None:
        """`needed`: deny nobody unless it is written. Else the fence matters more."""
        self._context = context
        self._needed = needed
        self._path = _lift_file_path(context.services, context.journal.run_id)
        self.text = ""

    def __call__(self, acls: Collection[Acl]) -> None:
        self._write(list_names(acls, Resource.TOPIC), list_names(acls, Resource.TRANSACTIONAL_ID), command=False)

    def write_for_command(self, topics: Collection[str]) -> None:
        self._write(tuple(sorted(topics)), (), command=True)

    def _write(self, topics: tuple[str, ...], transactional_ids: tuple[str, ...], *, command: bool) -> None:
        link = self._context.link
        fence = FenceFile(
            run=self._context.journal.run_id,
            mirror=link.mirror.name,
            cluster=link.source.name,
            cluster_id=link.mirror.source_id,
            destination=link.destination.name,
            written_ms=now_ms(),
            topics=topics,
            transactional_ids=transactional_ids,
            command=command,
        )
        try:
            write_fence_file(self._path, fence, EVIDENCE_ADVICE)
        except Unwritable as error:
            if self._needed:
                raise
            self.text = f"no file to lift it by: {error}"
            return
        command_line = format_shell_command(
            "mirrorbook", "cluster", "unfence", link.source.name, "--from", str(self._path)
        )
        if command_line != self.text:
            self.text = command_line
            self._context.print_line(f"should {link.destination.name} die behind the fence: {command_line}")


def read_lift_file(services: Services, run_id: str) -> FenceFile | None:
    """Returns None if the run was conducted elsewhere or had no disk space. Then only the cluster can tell."""
    try:
        return read_fence_file(_lift_file_path(services, run_id))
    except BadRequest:
        return None


def is_known_to_stand(services: Services, run_id: str) -> bool:
    """Whether the file is here and unused. Nothing else tells of a silent source."""
    file = read_lift_file(services, run_id)
    return file is not None and file.lifted_ms is None


def _lift_file_path(services: Services, run_id: str) -> Path:
    return fence_file_path(services.evidence_dir / f"run-{run_id}", run_id)
