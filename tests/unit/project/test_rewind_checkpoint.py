"""The script that rewinds a Spark checkpoint, on folders as Spark leaves them."""

from __future__ import annotations

import io
import itertools
import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

SCRIPT: Final = Path(__file__).parents[3] / "docs" / "operate" / "rewind_checkpoint.py"
LMO: Final = 100
DESCRIBED: Final = json.dumps({"rows": [{"partition": "orders-0", "lmo": LMO}, {"partition": "broken-0", "lmo": None}]})


def checkpoint(root: Path, ends: list[int], committed: int) -> tuple[Path, Path]:
    """Batches that read so far each, the first ones committed, with a state store and a file sink."""
    folder, sink = root / "checkpoint", root / "sink"
    made = []
    for number, end in enumerate(ends):
        offsets = json.dumps({"orders": {"0": end}})
        made.append((folder / "offsets" / str(number), f'v1\n{{"conf":{{}}}}\n{{"logOffset":7}}\n{offsets}'))
        made.append((sink / "_spark_metadata" / (f"{number}.compact" if number == 1 else str(number)), "v1"))
        stores = (folder / "state" / "0" / "0", folder / "state" / "0" / "1" / "left")
        made += [(store / f"{number + 1}.delta", f"state {number + 1}") for store in stores]
        if number < committed:
            made.append((folder / "commits" / str(number), "v1"))
    made += [(folder / "state" / "0/0" / f"{len(ends)}.snapshot", ""), (folder / "metadata", "{}")]
    for path, text in made:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.with_name(f".{path.name}.crc").touch()
    return folder, sink


def rewind(*folders: Path, described: str = DESCRIBED) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, folders)]
    return subprocess.run(command, input=described, capture_output=True, text=True, check=False)


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("ends", "committed", "last"),
    [
        ([40, 90, 110, 120], 4, 1),  # read ahead of the copy
        ([40, 100, 101], 2, 1),  # ahead and not committed; at the LMO is not ahead
        ([40, 90, 110, 100], 3, 1),  # Spark was started already: the batch that it refused ends at the log's end
        ([40, 90], 1, 0),  # begun only: Spark would do it again
        ([40, 90], 2, 1),
    ],
)
def test_it_goes_back_to_the_last_committed_batch_that_is_not_ahead(
    tmp_path: Path, ends: list[int], committed: int, last: int
) -> None:
    folder, sink = checkpoint(tmp_path / "found", ends, committed)
    wanted_folder, wanted_sink = checkpoint(tmp_path / "wanted", ends[: last + 1], last + 1)
    before = files(tmp_path / "found")
    done = rewind(folder, sink)
    assert done.returncode == 0, done.stderr
    assert f"goes on behind batch {last};" in done.stdout
    stray = {f"state/0/0/{mark}{len(ends)}.snapshot{crc}" for mark, crc in (("", ""), (".", ".crc"))}
    mine = {f"state/0/0/{mark}{last + 1}.snapshot{crc}" for mark, crc in (("", ""), (".", ".crc"))}
    assert files(folder) - stray == files(wanted_folder) - mine
    assert bool(files(folder) & stray) == (len(ends) == last + 1), "a later snapshot would be taken for the state"
    assert files(sink) == files(wanted_sink)
    assert len(files(tmp_path / "found")) == len(before), "something is deleted"
    assert rewind(folder, sink).stdout.endswith("; 0 files were put aside\n")


def test_it_may_be_interrupted_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [40, 90, 110, 100, 120]
    wanted = checkpoint(tmp_path / "wanted", ends, 4)
    rewind(*wanted)
    moves = len(files(tmp_path / "wanted")) - sum(len(files(folder)) for folder in wanted)
    assert moves > 20
    for most in range(moves):
        found = checkpoint(tmp_path / str(most), ends, 4)
        with monkeypatch.context() as patched:
            patched.setattr(sys, "argv", [str(SCRIPT), *map(str, found)])
            patched.setattr(sys, "stdin", io.StringIO(DESCRIBED))
            patched.setattr(Path, "replace", interrupted_after(most))
            with pytest.raises(KeyboardInterrupt):
                runpy.run_path(str(SCRIPT), run_name="__main__")
        assert rewind(*found).returncode == 0
        assert [files(folder) for folder in found] == [files(folder) for folder in wanted], f"after {most} files"


def interrupted_after(most: int) -> Callable[[Path, Path], Path]:
    real, moves = Path.replace, itertools.count()

    def replace(path: Path, place: Path) -> Path:
        if next(moves) == most:
            raise KeyboardInterrupt
        return real(path, place)

    return replace


def test_what_was_put_aside_before_stays(tmp_path: Path) -> None:
    folder, sink = checkpoint(tmp_path, [40, 110], 2)
    rewind(folder, sink)
    checkpoint(tmp_path, [40, 130], 2)
    assert rewind(folder, sink).returncode == 0
    aside = tmp_path / "checkpoint.rewound" / "offsets"
    assert [path.read_text().splitlines()[-1] for path in (aside / "1", aside / "1~")] == [
        '{"orders": {"0": 110}}',
        '{"orders": {"0": 130}}',
    ]


@pytest.mark.parametrize(
    ("ends", "described", "why"),
    [
        ([110, 120], DESCRIBED, "no batch is old enough"),
        ([], DESCRIBED, "no batch is old enough"),
        ([40], '{"rows": []}', "batch 0 reads orders-0: the mirror knows no LMO of it"),
        ([40], DESCRIBED.replace("100", "null"), "batch 0 reads orders-0: the mirror knows no LMO of it"),
    ],
)
def test_it_refuses_and_leaves_everything_alone(tmp_path: Path, ends: list[int], described: str, why: str) -> None:
    folder, sink = checkpoint(tmp_path, ends, len(ends))
    before = files(tmp_path)
    done = rewind(folder, sink, described=described)
    assert done.returncode == 1
    assert why in done.stderr
    assert files(tmp_path) == before
