"""Checks receipt files against their heads in the state topic, and computes the next heads. Pure.

A head is written before its file. So a file without a head is not ours, and one that was never written is no loss.
Paths are below the mirror's folder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from mirror_core.model.names import MirrorName
from mirror_core.model.parity import ParityResult, Verdict
from mirror_core.model.receipts import Kept, ReceiptsHead

Heads = Mapping[str, ReceiptsHead]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    good: tuple[str, ...]
    lost: tuple[str, ...] = ()
    altered: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    unwritten: tuple[str, ...] = ()
    """Announced, perhaps never written."""
    left_over: tuple[str, ...] = ()
    """Left by an interrupted compaction. Nobody reads them."""
    headless: bool = False

    @property
    def trouble(self) -> tuple[str, ...]:
        return (*self.altered, *self.lost, *self.unknown)

    @property
    def sound(self) -> bool:
        return not self.trouble

    def words(self) -> Iterator[str]:
        all_of_them = ", nor any other: is this the folder that `replicate` was given? If it is"
        for what, paths, why in (
            ("altered", self.altered, "is not as it was written; nothing that it says is believed"),
            ("lost", self.lost, f"was written, and is not there{'' if self.good or self.altered else all_of_them}"),
            ("not ours", self.unknown, "is told of by no head; nothing that it says is believed"),
        ):
            if paths:
                more = f" (and {len(paths) - 1} more such files)" if len(paths) > 1 else ""
                yield (
                    f"receipts are {what}: {paths[0]}{more} {why}: `mirrorbook receipts rebuild` compares what no "
                    "other receipt vouches for with the source"
                )

    def remarks(self) -> Iterator[str]:
        if self.headless:
            yield (
                f"{len(self.good)} files of receipts have no head: an older version wrote them. Whether one was "
                "altered, or is lost, is not known"
            )
        if self.unwritten:
            yield (
                f"{len(self.unwritten)} files of receipts (first {self.unwritten[0]}) were never written, or lost at "
                "once: their data plane ended before it knew that they were there"
            )
        if self.left_over:
            yield (
                f"{len(self.left_over)} files (first {self.left_over[0]}) are left of a compaction that was cut short; "
                "nobody reads them, and the next one deletes them"
            )


def checked(heads: Heads, found: Mapping[str, str]) -> Checked:
    """`found_hashes`: SHA-256 per existing file."""
    if not heads:
        return Checked(good=tuple(sorted(found)), headless=bool(found))
    told, settled = listed(heads), {path for head in heads.values() for path in head.instead}
    whole = {head.path("") for head in heads.values() if head.whole}
    rest = sorted(path for path in found if path not in told and path not in settled)
    left_over = [path for path in rest if _folder(path) in whole or is_day_file(path)]
    missing = sorted(path for path in told if path not in found)
    return Checked(
        good=tuple(sorted(path for path, one in told.items() if found.get(path) == one.sha256)),
        lost=tuple(path for path in missing if told[path].stored),
        altered=tuple(sorted(path for path, one in told.items() if found.get(path, one.sha256) != one.sha256)),
        unknown=tuple(path for path in rest if path not in left_over),
        unwritten=tuple(path for path in missing if not told[path].stored),
        left_over=tuple(left_over),
    )


def with_receipts(result: ParityResult, found: Checked) -> ParityResult:
    """Lower the verdict for faulty receipts: somebody altered one to be believed."""
    verdict = Verdict.FAILED if found.altered else result.verdict
    if verdict is Verdict.PASSED and not found.sound:
        verdict = Verdict.INDETERMINATE
    return replace(result, verdict=verdict, reasons=(*found.words(), *result.reasons))


def listed(heads: Heads) -> dict[str, Kept]:
    settled = {path for head in heads.values() for path in head.instead}
    told = {head.path(one.name): one for head in heads.values() for one in head.files}
    return {path: one for path, one in told.items() if path not in settled}


def in_words(heads: Heads) -> str:
    files = listed(heads)
    if not files:
        return "none were stored"
    newest = max(head.part for head in heads.values() if head.files)
    return f"{len(files)} files with {sum(one.pieces for one in files.values())} pieces, the newest of {newest} (UTC)"


def day_file(sha256: str) -> str:
    return f"day-{sha256[:16]}.parquet"


def is_day_file(path: str) -> bool:
    return path.rpartition("/")[2].startswith("day-")


def place(heads: Heads) -> str:
    """Empty: none, or unknown."""
    newest = max((head for head in heads.values() if head.files), key=_age, default=None)
    return newest.where if newest else ""


def _age(head: ReceiptsHead) -> tuple[str, bool, str]:
    """Rebuilt and compacted parts sort after the hours of their day."""
    return head.day, "T" not in head.part, head.part


def promised(mirror: MirrorName, heads: Heads, part: str, file: Kept, *, where: str) -> ReceiptsHead:
    before = heads.get(part) or ReceiptsHead(mirror=mirror, part=part, files=())
    files = (*(one for one in before.files if one.name != file.name), file)
    return replace(before, files=files, where=where)


def arrived(heads: Heads, there: Collection[tuple[str, str]]) -> list[ReceiptsHead]:
    changed = []
    for part in sorted({part for part, _ in there}):
        if (head := heads.get(part)) is not None:
            files = tuple(one._replace(stored=one.stored or (part, one.name) in there) for one in head.files)
            if files != head.files:
                changed.append(replace(head, files=files))
    return changed


def put_together(heads: Heads, day: ReceiptsHead) -> tuple[ReceiptsHead, tuple[ReceiptsHead, ...]]:
    """(the day's head to write, heads to forget).

    An empty day keeps a head without files, so that its old files do not look foreign.
    """
    gone = [head for head in heads.values() if head.day == day.day]
    others = [head for head in heads.values() if head.day != day.day]
    told = {head.path(one.name) for head in others for one in head.files}
    whole = {head.path("") for head in [*others, day] if head.whole}
    settled = {path for head in gone for path in head.instead}
    instead = tuple(sorted(path for path in settled if path in told or _folder(path) not in whole))
    return replace(day, instead=instead), tuple(head for head in gone if head.part != day.part)


def settled(head: ReceiptsHead, paths: Iterable[str]) -> ReceiptsHead:
    return replace(head, instead=tuple(sorted({*head.instead, *paths})))


def _folder(path: str) -> str:
    return path.rpartition("/")[0] + "/"
