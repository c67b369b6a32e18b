"""Whether the files of receipts are those that their heads tell of, and what heads say next. Pure.

A head is written before its file: so a file that no head tells of is not ours, and one that was never written is no
loss. Paths are below the mirror's folder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from mirror_core.model.names import MirrorName
from mirror_core.model.parity import ParityResult, Verdict
from mirror_core.model.receipts import Kept, ReceiptsHead

Heads = Mapping[str, ReceiptsHead]
"""Of one mirror, by their part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What there is, held against what is told. Paths, in order."""

    good: tuple[str, ...]
    """To be read."""
    lost: tuple[str, ...] = ()
    altered: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """No head tells of them."""
    unwritten: tuple[str, ...] = ()
    """Told of, and perhaps never written."""
    left_over: tuple[str, ...] = ()
    """Of a compaction that was cut short; nobody reads them."""
    headless: bool = False
    """There are receipts, and no head at all: an older version's. All of them are read."""

    @property
    def trouble(self) -> tuple[str, ...]:
        return (*self.altered, *self.lost, *self.unknown)

    @property
    def sound(self) -> bool:
        return not self.trouble

    def words(self) -> Iterator[str]:
        """Why what receipts prove is not all there is to say; empty when they are sound."""
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
        """What changes no verdict."""
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
    """`found`: the SHA-256 of each file that is there."""
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
    """What receipts prove, judged by what became of the receipts: who has altered one meant to be believed."""
    verdict = Verdict.FAILED if found.altered else result.verdict
    if verdict is Verdict.PASSED and not found.sound:
        verdict = Verdict.INDETERMINATE
    return replace(result, verdict=verdict, reasons=(*found.words(), *result.reasons))


def listed(heads: Heads) -> dict[str, Kept]:
    """All files that are to be there, by their paths."""
    settled = {path for head in heads.values() for path in head.instead}
    told = {head.path(one.name): one for head in heads.values() for one in head.files}
    return {path: one for path, one in told.items() if path not in settled}


def in_words(heads: Heads) -> str:
    """What must be there, for people who have not looked yet."""
    files = listed(heads)
    if not files:
        return "none were stored"
    newest = max(head.part for head in heads.values() if head.files)
    return f"{len(files)} files with {sum(one.pieces for one in files.values())} pieces, the newest of {newest} (UTC)"


def day_file(sha256: str) -> str:
    """The name of a day's receipts that were put together."""
    return f"day-{sha256[:16]}.parquet"


def is_day_file(path: str) -> bool:
    return path.rpartition("/")[2].startswith("day-")


def place(heads: Heads) -> str:
    """The folder or the URL in which the newest of these files is; empty: there are none, or nobody told where."""
    newest = max((head for head in heads.values() if head.files), key=_age, default=None)
    return newest.where if newest else ""


def _age(head: ReceiptsHead) -> tuple[str, bool, str]:
    """What is stored anew, or put together, comes after the hours of its day."""
    return head.day, "T" not in head.part, head.part


def promised(mirror: MirrorName, heads: Heads, part: str, file: Kept, *, where: str) -> ReceiptsHead:
    """The head that tells of one file more, or of what it holds now."""
    before = heads.get(part) or ReceiptsHead(mirror=mirror, part=part, files=())
    files = (*(one for one in before.files if one.name != file.name), file)
    return replace(before, files=files, where=where)


def arrived(heads: Heads, there: Collection[tuple[str, str]]) -> list[ReceiptsHead]:
    """Heads that change since these files (part and name) are known to be there."""
    changed = []
    for part in sorted({part for part, _ in there}):
        if (head := heads.get(part)) is not None:
            files = tuple(one._replace(stored=one.stored or (part, one.name) in there) for one in head.files)
            if files != head.files:
                changed.append(replace(head, files=files))
    return changed


def put_together(heads: Heads, day: ReceiptsHead) -> tuple[ReceiptsHead, tuple[ReceiptsHead, ...]]:
    """What to write when a day has been put together, and which heads to forget.

    A day of which nothing is left keeps a head without files: its old ones must not seem to be somebody else's. What
    was settled before stays so, but for what nobody asks for any more.
    """
    gone = [head for head in heads.values() if head.day == day.day]
    others = [head for head in heads.values() if head.day != day.day]
    told = {head.path(one.name) for head in others for one in head.files}
    whole = {head.path("") for head in [*others, day] if head.whole}
    settled = {path for head in gone for path in head.instead}
    instead = tuple(sorted(path for path in settled if path in told or _folder(path) not in whole))
    return replace(day, instead=instead), tuple(head for head in gone if head.part != day.part)


def settled(head: ReceiptsHead, paths: Iterable[str]) -> ReceiptsHead:
    """The same, standing in for these files from now on."""
    return replace(head, instead=tuple(sorted({*head.instead, *paths})))


def _folder(path: str) -> str:
    return path.rpartition("/")[0] + "/"
