"""Compares new data with the source while copying goes on, at a bounded rate.

A run that holds the mirror, or the end of the process, stops a comparison between two chunks; what was verified is
kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Final

from mirror_core.dataplane.counters import Counters, Retry
from mirror_core.decide.parity import CHUNK_OFFSETS, RECORDS, Row
from mirror_core.kafka.kept import KEPT
from mirror_core.mirrors.proving import Memory, compare_rest, seldom
from mirror_core.model.errors import HeldByRun, LostOwnership, MirrorError, Refused
from mirror_core.model.logs import about, logger
from mirror_core.model.names import Partition
from mirror_core.model.parity import ParityRange, ParityResult, Verdict
from mirror_core.model.proof import Proof
from mirror_core.parity.check import check
from mirror_core.parity.compare import CompareTask, compare
from mirror_core.parity.scope import scope
from mirror_core.parity.so_far import SoFar
from mirror_core.state.link import Link, state_on
from mirror_core.state.remembered import REMEMBERED

_log = logger(__name__)

EVERY_S: Final = 300.0
KEPT_S: Final = 60.0
"""How often progress is saved. Each save takes the control id, which ends a sync under way."""
IDLE_S: Final = 3600.0
"""For compacted topics, and where nothing is new."""
SHOWN: Final = 10
UNREADABLE_ADVICE: Final = (
    "applications cannot read it there either: a broker's disk, as a rule. Let a sound replica lead, and have that "
    "broker fetch its own anew; where none is sound, recopy (on call: a batch that cannot be read)"
)
_LEAVE_S: Final = 0.5


class _Ended(Exception):
    """The process ends, or a run holds the mirror."""


class BackgroundProof:
    def __init__(
        self,
        link: Link,
        bytes_per_s: int,
        counters: Counters,
        say: Callable[[str], None],
        *,
        every_s: float = EVERY_S,
    ) -> None:
        """Bytes read of each cluster, at most."""
        self._link = link
        self._rate = bytes_per_s
        self._counters = counters
        self._say = say
        self._said: tuple[tuple[str, ...], tuple[str, ...]] = (), ()
        self._every_s = every_s
        self._stop = threading.Event()
        self._seen: tuple[ParityRange, ...] = ()
        self._in_doubt: frozenset[Partition] = frozenset()
        """Not compared in full in the last round."""
        self._again_at = self._cleaned_at = 0.0
        self._thread = threading.Thread(target=self._run, name="proof", daemon=True)

    def __enter__(self) -> BackgroundProof:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_LEAVE_S)  # it may be reading; what is verified is kept

    def _run(self) -> None:
        with about(mirror=self._link.mirror.name), REMEMBERED.keeping(), KEPT.keeping():
            while not self._stop.wait(self._every_s):
                try:
                    self._look()
                except _Ended:
                    continue
                except (HeldByRun, LostOwnership) as error:
                    _log.info("not compared now: %s", error)
                except Exception as error:  # noqa: BLE001 - copying goes on beside it, whatever this is
                    self._counters.retried(Retry.PROOF)
                    _log.info("not compared now: %s", error if isinstance(error, MirrorError) else type(error).__name__)

    def _look(self) -> None:
        link = self._link
        state = state_on(link.config, link.destination.name)
        if state.active_run(link.mirror.name) is not None:
            return  # the run compares, and only it may write
        ranges = scope(link, state).ranges
        if not any(one.start < one.end for one in ranges):
            return
        if ranges == self._seen and time.monotonic() < self._again_at:
            return
        began = time.monotonic()
        memory = Memory(link, state.proofs.get(link.mirror.name))
        cleaned = began >= self._cleaned_at
        keep = partial(self._keep, memory)
        keep_if_due = seldom(keep, KEPT_S, due_at=began + KEPT_S)
        recent = set() if cleaned else state.partitions.get(link.mirror.name, {}).keys() - self._in_doubt
        result, proof, _ = compare_rest(
            link, state, ranges, self._compare, whole=False, keep=keep_if_due, recent=recent
        )
        self._tell(result)
        keep(proof)
        self._in_doubt = result.in_doubt
        if cleaned:
            self._cleaned_at = began + IDLE_S
        if result.verdict is Verdict.PASSED:
            self._seen, self._again_at = ranges, time.monotonic() + IDLE_S

    def _compare(self, ranges: Sequence[ParityRange], so_far: SoFar) -> ParityResult:
        mirror = self._link.mirror
        return check(
            self._link.config.path,
            mirror.source,
            mirror.destination,
            ranges,
            None,
            run=self._one_by_one,
            tasks=1,
            level=RECORDS,
            chunk=CHUNK_OFFSETS,
            demands=None,
            so_far=so_far,
            throttle=self._rate,
        )

    def _one_by_one(self, tasks: Sequence[CompareTask]) -> Iterator[Sequence[Row]]:
        """In this thread: a pool would be waited for when the process ends."""
        for task in tasks:
            if self._stop.is_set():
                raise _Ended
            yield compare(task)

    def _keep(self, memory: Memory, proof: Proof) -> None:
        try:
            memory.keep(proof)
        except HeldByRun:
            raise
        except Refused as error:  # stopped, or deleted
            raise _Ended from error

    def _tell(self, result: ParityResult) -> None:
        """Report a finding once, and again when it changes."""
        self._counters.compared(len(result.findings) + len(result.damaged))
        if result.verdict is Verdict.INDETERMINATE:
            self._counters.retried(Retry.PROOF)
            if not result.in_doubt or result.in_doubt - {found.partition for found in result.damaged}:
                _log.info("compared in part: %s", "; ".join(result.reasons[:SHOWN]))
        differs = tuple(f"{f.partition} at {f.offset}: {f.kind}: {f.detail}" for f in result.findings[:SHOWN])
        damaged = tuple(found.detail for found in result.damaged[:SHOWN])
        if (differs or damaged) and (differs, damaged) != self._said:
            if differs:
                self._say(f"THE COPY DIFFERS from its source, {len(result.findings)} finding(s): {'; '.join(differs)}")
            if damaged:
                self._say(f"CANNOT BE READ, and so not compared, {len(result.damaged)} place(s): {'; '.join(damaged)}")
                self._say(UNREADABLE_ADVICE)
            name = self._link.mirror.name
            self._say(f"`mirrorbook parity {name}` shows all; what lies before the first such place stays proved")
        self._said = differs, damaged
