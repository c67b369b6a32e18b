"""Checks receipt files against their heads, and computes the next ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from mirror_core.model.names import MirrorName
from mirror_core.model.parity_verdict import ParityResult, ParityVerdict
from mirror_core.model.receipt_heads import ReceiptFileEntry, ReceiptsHead

ReceiptHeads = Mapping[str, ReceiptsHead]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedReceipts:
    readable: tuple[str, ...]
    lost: tuple[str, ...] = ()
    altered: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    unwritten: tuple[str, ...] = ()
    """Announced, perhaps never written."""
    left_over: tuple[str, ...] = ()
    """By an interrupted compaction. Nobody reads them."""
    headless: bool = False

    @property
    def faulty_paths(self) -> tuple[str, ...]:
        return (*self.altered, *self.lost, *self.unknown)

    @property
    def is_sound(self) -> bool:
        return not self.faulty_paths

    def format_faults(self) -> Iterator[str]:
        no_file_text = ", nor any other: is this the folder that `replicate` was given? If it is"
        for fault, paths, explanation in (
            ("altered", self.altered, "is not as it was written; nothing that it says is believed"),
            (
                "lost",
                self.lost,
                f"was written, and is not there{'' if self.readable or self.altered else no_file_text}",
            ),
            ("not ours", self.unknown, "is told of by no head; nothing that it says is believed"),
        ):
            if paths:
                more_text = f" (and {len(paths) - 1} more such files)" if len(paths) > 1 else ""
                yield (
                    f"receipts are {fault}: {paths[0]}{more_text} {explanation}: `mirrorbook receipts rebuild` compares"
                    " what no other receipt vouches for with the source"
                )

    def format_remarks(self) -> Iterator[str]:
        if self.headless:
            yield (
                f"{len(self.readable)} files of receipts have no head in the state topic. Whether one was altered, or "
                "is lost, is not known"
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


def check_receipts(heads: ReceiptHeads, found_hashes: Mapping[str, str]) -> CheckedReceipts:
    """`found_hashes`: SHA-256 per existing file."""
    if not heads:
        return CheckedReceipts(readable=tuple(sorted(found_hashes)), headless=bool(found_hashes))
    expected, superseded = list_receipt_files(heads), {path for head in heads.values() for path in head.abandoned_files}
    whole_folders = {head.get_file_path("") for head in heads.values() if head.is_whole_day}
    untold = sorted(path for path in found_hashes if path not in expected and path not in superseded)
    left_over = [path for path in untold if _parent_folder(path) in whole_folders or is_day_file(path)]
    missing = sorted(path for path in expected if path not in found_hashes)
    return CheckedReceipts(
        readable=tuple(
            sorted(path for path, receipt_file in expected.items() if found_hashes.get(path) == receipt_file.sha256)
        ),
        lost=tuple(path for path in missing if expected[path].stored),
        altered=tuple(
            sorted(
                path
                for path, receipt_file in expected.items()
                if found_hashes.get(path, receipt_file.sha256) != receipt_file.sha256
            )
        ),
        unknown=tuple(path for path in untold if path not in left_over),
        unwritten=tuple(path for path in missing if not expected[path].stored),
        left_over=tuple(left_over),
    )


def apply_receipt_faults(result: ParityResult, checked_receipts: CheckedReceipts) -> ParityResult:
    """An altered receipt makes any verdict FAILED: its author wanted it to be believed."""
    verdict = ParityVerdict.FAILED if checked_receipts.altered else result.verdict
    if verdict is ParityVerdict.PASSED and not checked_receipts.is_sound:
        verdict = ParityVerdict.INDETERMINATE
    return replace(result, verdict=verdict, reasons=(*checked_receipts.format_faults(), *result.reasons))


def list_receipt_files(heads: ReceiptHeads) -> dict[str, ReceiptFileEntry]:
    superseded = {path for head in heads.values() for path in head.abandoned_files}
    files = {
        head.get_file_path(receipt_file.name): receipt_file for head in heads.values() for receipt_file in head.files
    }
    return {path: receipt_file for path, receipt_file in files.items() if path not in superseded}


def format_receipts(heads: ReceiptHeads) -> str:
    files = list_receipt_files(heads)
    if not files:
        return "none were stored"
    newest = max(head.part for head in heads.values() if head.files)
    return (
        f"{len(files)} files with {sum(receipt_file.pieces for receipt_file in files.values())} pieces, the newest of"
        f" {newest} (UTC)"
    )


def format_day_file(sha256: str) -> str:
    return f"day-{sha256[:16]}.parquet"


def is_day_file(path: str) -> bool:
    return path.rpartition("/")[2].startswith("day-")


def find_newest_location(heads: ReceiptHeads) -> str:
    """Empty: none, or unknown."""
    newest = max((head for head in heads.values() if head.files), key=_sort_key, default=None)
    return newest.location if newest else ""


def _sort_key(head: ReceiptsHead) -> tuple[str, bool, str]:
    """Rebuilt and compacted parts sort after the hours of their day."""
    return head.day, "T" not in head.part, head.part


def add_file(
    mirror: MirrorName, heads: ReceiptHeads, part: str, file: ReceiptFileEntry, *, location: str
) -> ReceiptsHead:
    current = heads.get(part) or ReceiptsHead(mirror=mirror, part=part, files=())
    files = (*(known_file for known_file in current.files if known_file.name != file.name), file)
    return replace(current, files=files, location=location)


def mark_stored(heads: ReceiptHeads, stored: Collection[tuple[str, str]]) -> list[ReceiptsHead]:
    changed = []
    for part in sorted({part for part, _ in stored}):
        if (head := heads.get(part)) is not None:
            files = tuple(
                receipt_file._replace(stored=receipt_file.stored or (part, receipt_file.name) in stored)
                for receipt_file in head.files
            )
            if files != head.files:
                changed.append(replace(head, files=files))
    return changed


def replace_day(heads: ReceiptHeads, day: ReceiptsHead) -> tuple[ReceiptsHead, tuple[ReceiptsHead, ...]]:
    """(the day's head to write, heads to forget).

    An empty day keeps a head without files, so that its old files do not look foreign.
    """
    replaced = [head for head in heads.values() if head.day == day.day]
    other_heads = [head for head in heads.values() if head.day != day.day]
    expected = {head.get_file_path(receipt_file.name) for head in other_heads for receipt_file in head.files}
    whole_folders = {head.get_file_path("") for head in [*other_heads, day] if head.is_whole_day}
    superseded = {path for head in replaced for path in head.abandoned_files}
    instead = tuple(
        sorted(path for path in superseded if path in expected or _parent_folder(path) not in whole_folders)
    )
    return replace(day, abandoned_files=instead), tuple(head for head in replaced if head.part != day.part)


def supersede_files(head: ReceiptsHead, paths: Iterable[str]) -> ReceiptsHead:
    return replace(head, abandoned_files=tuple(sorted({*head.abandoned_files, *paths})))


def _parent_folder(path: str) -> str:
    return path.rpartition("/")[0] + "/"
