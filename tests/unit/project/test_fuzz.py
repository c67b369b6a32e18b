"""The fuzz targets on their seeds, on former crashers, and on some mutations (more by hand: docs/developing.md)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.seeds import SEEDS
from tests.fuzz.targets import TARGETS

CRASHERS = Path(__file__).parents[2] / "fuzz" / "crashers"


@pytest.mark.parametrize("name", TARGETS)
def test_valid_inputs_pass_and_so_do_former_crashers(name: str) -> None:
    for seed in SEEDS[name]():
        TARGETS[name](seed)
    for crasher in sorted((CRASHERS / name).glob("*")):
        TARGETS[name](crasher.read_bytes())


def test_every_crasher_belongs_to_a_target() -> None:
    assert {folder.name for folder in CRASHERS.iterdir() if folder.is_dir()} <= set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=100)
@given(data=st.data())
def test_mutated_inputs_are_named_errors_at_worst(name: str, data: st.DataObject) -> None:
    changed = bytearray(data.draw(st.sampled_from(SEEDS[name]())))
    nasty = st.sampled_from([0, 1, 0x3C, 0x7F, 0x80, 0xFF])
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(nasty)
    TARGETS[name](bytes(changed[: data.draw(st.integers(0, len(changed)))]))
    TARGETS[name](bytes(changed))


_BOMBS = """
import resource, struct, zlib
from mirror_core.wire.batch import MalformedBatch
from mirror_core.wire.records import Codec, decompress

zstd = b"\\x28\\xb5\\x2f\\xfd\\0\\x38" + struct.pack("<I", 128 << 10 << 3 | 1 << 1)[:3] + b"\\0"
zstd += (struct.pack("<I", 128 << 10 << 3 | 1 << 1)[:3] + b"\\0") * 80_000
deflate = zlib.compressobj(1, wbits=31)
gzip = b"".join(deflate.compress(bytes(1 << 20)) for _ in range(300))
snappy = b"\\xff\\xff\\xff\\xff\\x0f" + bytes(50)
limit = 500 << 20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for codec, bomb in ((Codec.ZSTD, zstd), (Codec.GZIP, gzip), (Codec.SNAPPY, snappy)):
    try:
        decompress(codec, bomb)
    except MalformedBatch as error:
        print(codec.name, error)
"""


def test_bombs_do_not_take_the_memory() -> None:
    """10 GB of zeros in 320 KB of zstd, 300 MB in gzip, 4 GB claimed by snappy: the process may have 0.5 GB."""
    ended = subprocess.run([sys.executable, "-c", _BOMBS], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["ZSTD", "GZIP", "SNAPPY"]
    for line, most in zip(lines, (128 << 20, 128 << 20, 16 << 20), strict=True):
        assert f"{most} bytes" in line, "of 50 bytes nobody expects as much as of hundreds of kilobytes"
