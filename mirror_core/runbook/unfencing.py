"""Before a run denies anybody: the file that lifts its fence, should the destination die behind it."""

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
"""In a step's evidence: the command that lifts the fence."""


class LiftFile:
    """Writes what is about to be denied, each time it is more; the first time it says how the fence is lifted."""

    def __init__(self, acts: Acts, *, needed: bool = True) -> None:
        """`needed`: nobody is denied unless it can be written. Otherwise the fence is worth more than its file."""
        self._acts = acts
        self._needed = needed
        self._path = _path(acts.services, acts.journal.run_id)
        self.words = ""
        """The command that lifts the fence, or why there is none; empty while nothing was denied."""

    def __call__(self, acls: Collection[Acl]) -> None:
        self._write(names_of(acls, Resource.TOPIC), names_of(acls, Resource.TRANSACTIONAL_ID), command=False)

    def by_command(self, topics: Collection[str]) -> None:
        """The same before `fence_command` is called."""
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
    """A run's file, which tells whether somebody began to lift the fence by it; None: the run was conducted elsewhere
    until now, or had no room for it. Then the cluster tells, or nobody."""
    try:
        return read(_path(services, run_id))
    except BadRequest:
        return None


def known_to_stand(services: Services, run_id: str) -> bool:
    """Whether the file is here, and nobody has lifted the fence by it. Of a source that is silent nothing else tells: a
    fence may have been lifted by a copy of the file, or where the run was conducted before."""
    file = its_file(services, run_id)
    return file is not None and file.lifted_ms is None


def _path(services: Services, run_id: str) -> Path:
    """Nothing is made here: whoever only looks, and whoever can do without the file, needs no room for it."""
    return path_of(services.evidence_dir / f"run-{run_id}", run_id)
