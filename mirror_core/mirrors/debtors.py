from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from mirror_core.decide.standing import Judgement, Standing
from mirror_core.mirrors.standing import answers, look_after, said
from mirror_core.model.defects import type_and_line
from mirror_core.model.errors import LostOwnership, MirrorError
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.state.link import Link
from mirror_core.state.remembered import REMEMBERED
from mirror_core.state.topic import read_state
from mirror_core.state.watchers import Signs, busy_s

AT_ONCE: Final = 8
"""A silent cluster costs seconds of each."""
AGAIN_S: Final = 2.0

Found = Judgement | MirrorError


def look_at_each(links: Collection[Link]) -> dict[MirrorName, Found]:
    """Observe each old source once; a silent cluster delays nobody longer than one probe."""
    with REMEMBERED.keeping(), ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(_look, links)
        return dict(zip((link.mirror.name for link in links), found, strict=True))


def note_watched(links: Collection[Link], found: Mapping[MirrorName, Found], by: str, every_s: float) -> None:
    """The next check comes within `interval_s`."""
    for cluster in {link.destination.name: link.destination for link in links}.values():
        here_too = [link for link in links if link.destination.name == cluster.name]
        with Signs(cluster, by, every_s + max(map(busy_s, here_too))) as signs:
            for link in here_too:
                seen = found[link.mirror.name]
                if isinstance(seen, Judgement) and seen.standing is not Standing.NOTHING:
                    signs.give(link.mirror.name)


def silent(links: Collection[Link], found: Mapping[MirrorName, Found]) -> dict[ClusterName, list[MirrorName]]:
    waiting: dict[ClusterName, list[MirrorName]] = {}
    for link in links:
        seen = found[link.mirror.name]
        if isinstance(seen, Judgement) and seen.silent:
            waiting.setdefault(link.source.name, []).append(link.mirror.name)
    return waiting


def look_when_it_answers(links: Collection[Link], seconds: float) -> dict[MirrorName, Found]:
    """Observe mirrors of one source at its first answer; empty if that takes too long."""
    first, stop = next(iter(links)), threading.Event()
    with REMEMBERED.keeping():
        for destination in {link.destination.name: link.destination for link in links}.values():
            with suppress(MirrorError):  # cached, so that the probe at its first answer only reads on
                read_state(destination)
        return look_at_each(links) if answers(first, stop, seconds) else {}


def told_once(found: Mapping[MirrorName, Found]) -> dict[MirrorName, tuple[str, ...]]:
    return {name: seen.once for name, seen in found.items() if isinstance(seen, Judgement) and seen.once}


def note_told(links: Collection[Link], once: Mapping[MirrorName, Collection[str]]) -> None:
    for link in links:
        if alarms := once.get(link.mirror.name):
            said(link, alarms)


def _look(link: Link) -> Found:
    """A defect becomes an error: it hides no other mirror's alarm."""
    try:
        found = _look_once(link)
        if isinstance(found, MirrorError) and found.retryable and not isinstance(found, LostOwnership):
            time.sleep(AGAIN_S)
            found = _look_once(link)
    except Exception as error:  # noqa: BLE001 - told by its type alone
        return MirrorError(f"a defect of Mirrorbook: {type_and_line(error)}")
    return found


def _look_once(link: Link) -> Found:
    try:
        return look_after(link)
    except MirrorError as error:
        return error
