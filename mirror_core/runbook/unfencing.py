"""The file that lifts a run's fence if the destination dies. Written before any denial."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from mirror_core.evidence.fence_file import FenceFile, names_of, path_of, read, write
from mirror_core.model.acl import Acl, Resource
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import BadRequest
from mirror_core.model.files import Unwritable
from mirror_core.model.shell_command import shell_command
from mirror_core.runbook.acts import Acts
from mirror_core.runbook.services import ADVICE, Services

FILE: Final = "if_the_destination_dies"


class LiftFile:
    """Writes what is about to be denied, whenever it grows."""

    def __init__(self, acts: Acts, *, needed: bool = True) -> None:
        """`needed`: deny nobody unless it is written. Else the fence matters more."""
        self._acts = acts
        self._needed = needed
        self._path = _path(acts.services, acts.journal.run_id)
        self.words = ""

    def __call__(self, acls: Collection[Acl]) -> None:
        self._write(names_of(acls, Resource.TOPIC), names_of(acls, Resource.TRANSACTIONAL_ID), command=False)

    def by_command(self, topics: Collection[str]) -> None:
        self._write(tuple(sorted(topics)), (), command=True)

    def _write(self, topics: tuple[str, ...], ids: tuple[str, ...], *, command: bool) -> None:
        link = self._acts.link
        fence = FenceFile(
            run=self._acts.journal.run_id,
            mirror=link.mirror.name,
            cluster=link.source.name,
            cluster_id=link.mirror.source_id,
            destination=link.destination.name,
            written_ms=now_ms(),
            topics=topics,
            transactional_ids=ids,
            command=command,
        )
        try:
            write(self._path, fence, ADVICE)
        except Unwritable as error:
            if self._needed:
                raise
            self.words = f"no file to lift it by: {error}"
            return
        words = shell_command("mirrorbook", "cluster", "unfence", link.source.name, "--from", str(self._path))
        if words != self.words:
            self.words = words
            self._acts.say(f"should {link.destination.name} die behind the fence: {words}")


def its_file(services: Services, run_id: str) -> FenceFile | None:
    """Returns None if the run was conducted elsewhere or had no disk space. Then only the cluster can tell."""
    try:
        return read(_path(services, run_id))
    except BadRequest:
        return None


def known_to_stand(services: Services, run_id: str) -> bool:
    """Whether the file is here and unused. Nothing else tells of a silent source."""
    file = its_file(services, run_id)
    return file is not None and file.lifted_ms is None


def _path(services: Services, run_id: str) -> Path:
    return path_of(services.evidence_dir / f"run-{run_id}", run_id)
