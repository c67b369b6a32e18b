"""A demonstration's folder: nobody else's files, one demonstration at a time, and a note of what it has started."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from mirror_core.model.errors import BadRequest, Refused
from mirror_core.supervisor.process_identity import MachineIdentity, get_machine
from mirrorbook_tools.sandbox.state import write_atomically

LOCK_FILE: Final = "demo.lock"


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What a demonstration leaves to the next one in its folder."""

    machine: MachineIdentity | None = None
    leaders: dict[int, int | None] = {}
    """Processes of this machine that lead a session: when each began, in clock ticks since the boot, by pid."""
    kept: bool = False
    """Its clusters were left running, because somebody wants them."""


class Place:
    """The folder; `marker` is the file that says whose it is."""

    def __init__(self, folder: Path, marker: str) -> None:
        self.folder = folder
        self._marker = folder / marker

    @contextmanager
    def claimed(self) -> Iterator[Note]:
        """Have it for ourselves until left; gives what the last demonstration has noted. BadRequest for a folder with
        anything else in it, Refused while another demonstration is at work there."""
        if self.folder.exists() and not self.folder.is_dir():
            raise BadRequest(f"{self.folder} is not a folder: choose another one with --dir")
        if self.folder.exists() and not self._marker.exists() and set(os.listdir(self.folder)) - {LOCK_FILE}:
            raise BadRequest(f"{self.folder} holds something else than a demonstration: choose another --dir")
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = open(self.folder / LOCK_FILE, "w", encoding="utf-8")  # noqa: SIM115 - closed below
        except OSError as error:
            raise BadRequest(f"{self.folder} cannot be written: {error.strerror}; choose another --dir") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel gives it back, however we end
            except BlockingIOError:
                reason = f"another demonstration is at work in {self.folder}: wait for its end, or choose another --dir"
                raise Refused("demonstration not started", [reason], reason_code="folder_in_use") from None
            left = self._read()
            self.note(left.leaders, kept=left.kept)
            yield left

    def note(self, leaders: Mapping[int, int | None], *, kept: bool = False) -> None:
        """Write down what runs now."""
        text = msgspec.json.encode(Note(machine=get_machine(), leaders=dict(leaders), kept=kept)).decode()
        write_atomically(self._marker, text + "\n")

    def _read(self) -> Note:
        try:
            found = msgspec.json.decode(self._marker.read_bytes(), type=Note)
        except FileNotFoundError:
            return Note()
        except msgspec.MsgspecError as error:
            raise BadRequest(
                f"{self._marker} cannot be read ({error}): stop what runs with `mirrorbook sandbox down --dir "
                f"{self.folder / 'sandbox'}`, remove the folder, and start again"
            ) from error
        # Numbers of another machine, container or time before a restart are other processes' here.
        return found if found.machine == get_machine() else Note(kept=found.kept)
