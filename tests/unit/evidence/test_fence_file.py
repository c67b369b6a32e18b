"""The file that lifts a fence: nothing comes out of it but what a fence denies, whoever wrote it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.evidence.fence_file import (
    MAX_FILE_BYTES,
    FenceFile,
    decode_fence_file,
    fence_file_path,
    find_open_fences,
    find_overlapping_files,
    mark_lifted,
    read_fence_file,
    write_fence_file,
)
from mirror_core.model.acl import Resource
from mirror_core.model.errors import BadRequest
from mirror_core.model.names import MirrorName
from mirror_core.rights.acl_rules import build_denial
from tests.support.fence_files import FENCE

GOOD = json.loads(json.dumps({name: getattr(FENCE, name) for name in FenceFile.__slots__}))


def test_what_is_written_is_read_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = fence_file_path(tmp_path / "run-1", "m-failover-1")
    write_fence_file(path, FENCE, "advice")
    assert read_fence_file(path) == FENCE
    assert path.stat().st_mode & 0o777 == 0o600
    assert [found.name for found in path.parent.iterdir()] == ["unfence-m-failover-1.json"]
    ids = {build_denial(name, resource=Resource.TRANSACTIONAL_ID) for name in ("tx-1", "*", "ü")}
    assert FENCE.denials == {build_denial("orders"), build_denial("a.b_c-1")} | ids


def test_evidence_of_a_run_that_has_ended_is_not_changed(tmp_path: Path) -> None:
    path = fence_file_path(tmp_path, "m-failover-1")
    write_fence_file(path, FENCE, "advice")
    (tmp_path / "head.json").write_text("{}")
    mark_lifted(path, FenceFile(**{**GOOD, "lifted_ms": 9}), "advice")
    assert read_fence_file(path).lifted_ms is None


def test_files_by_which_the_same_could_be_lifted_are_found_beside_it(tmp_path: Path) -> None:
    def put(run: str, **changed: object) -> Path:
        path = fence_file_path(tmp_path / f"run-{run}", run)
        write_fence_file(path, FenceFile(**{**GOOD, "run": run, **changed}), "advice")
        return path

    mine, other = put(FENCE.run), put("m-failover-2", topics=("orders",), transactional_ids=("tx-9",))
    ids = put("n-failover-1", topics=("bills",))
    put("o-failover-1", topics=("bills",), transactional_ids=())
    put("p-failover-1", cluster_id="xyz")
    put("q-failover-1", lifted_ms=5)
    (put("r-failover-1").parent / "head.json").write_text("{}")
    fence_file_path(tmp_path / "run-s", "s").parent.mkdir()
    fence_file_path(tmp_path / "run-s", "s").write_text("garbage")
    assert [path for path, _ in find_overlapping_files(mine, FENCE)] == [other, ids]
    copy = mine.parent / "copies" / mine.name
    assert not [*find_overlapping_files(copy, FENCE)]


@pytest.mark.parametrize(
    "changed",
    [
        {"topics": ["*"]},
        {"topics": [""]},
        {"topics": ["orders", "__consumer_offsets"]},
        {"topics": ["."]},
        {"topics": [".."]},
        {"topics": ["orders\n"]},
        {"topics": ["x" * 250]},
        {"topics": ["örders"]},
        {"topics": "orders"},
        {"topics": [{"name": "orders", "permission": "ALLOW"}]},
        {"topics": [1]},
        {"topics": None},
        {"topics": [], "transactional_ids": []},
        {"transactional_ids": [""]},
        {"transactional_ids": ["x" * 32_768]},
        {"transactional_ids": ["ü" * 16_384]},
        {"version": 2},
        {"version": "1"},
        {"run": None},
        {"cluster_id": 5},
        {"written_ms": 1e300},
        {"lifted_ms": "yesterday"},
    ],
    ids=str,
)
def test_what_no_fence_has_written_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(BadRequest, match=r"^f"):
        decode_fence_file(json.dumps({**GOOD, **changed}).encode(), "f")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b'{"run": "\xff"}',
        b"[" * 200_000,
        b'{"x":' * 200_000,
        json.dumps(GOOD).encode()[:-1],
        json.dumps(GOOD).replace("tx-1", "\\ud800").encode(),
        json.dumps(GOOD).replace("tx-1", "\\ud800\\u0041").encode(),
        b" " * (MAX_FILE_BYTES + 1),
    ],
    ids=range(12),
)
def test_garbage_is_refused(content: bytes) -> None:
    with pytest.raises(BadRequest, match=r"^f"):
        decode_fence_file(content, "f")


@given(st.binary(max_size=200) | st.dictionaries(st.text(), st.text()).map(lambda one: json.dumps(one).encode()))
def test_whatever_it_is_it_is_refused_and_nothing_breaks(content: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_fence_file(content, "f")


@given(st.lists(st.text(), max_size=5), st.lists(st.text(), max_size=5))
def test_only_denials_of_a_fences_shape_come_out(topics: list[str], ids: list[str]) -> None:
    try:
        found = decode_fence_file(json.dumps({**GOOD, "topics": topics, "transactional_ids": ids}).encode(), "f")
    except BadRequest:
        return
    wanted = {(Resource.TOPIC, name) for name in topics} | {(Resource.TRANSACTIONAL_ID, name) for name in ids}
    assert {(acl.resource, acl.name) for acl in found.denials} == wanted
    assert {acl for acl in found.denials if acl != build_denial(acl.name, resource=acl.resource)} == set()
    assert not [name for name in topics if name == "*" or name.startswith("__")]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path, tmp_path / "none", tmp_path / "fifo", tmp_path / "loop", Path("/dev/zero"), Path("a\0b")):
        with pytest.raises(BadRequest):
            read_fence_file(path)


def test_only_fences_of_this_mirrors_open_runs_are_named(tmp_path: Path) -> None:
    for number, fence in enumerate((FENCE, replace(FENCE, mirror=MirrorName("n")), replace(FENCE, lifted_ms=8), FENCE)):
        write_fence_file(fence_file_path(tmp_path / f"run-{number}", "r"), fence, "advice")
    (tmp_path / "run-3" / "head.json").write_text("{}", encoding="utf-8")
    (tmp_path / "run-4").mkdir()
    (tmp_path / "run-4" / "unfence-r.json").write_text("garbage", encoding="utf-8")
    assert list(find_open_fences(tmp_path, "m")) == [(tmp_path / "run-0" / "unfence-r.json", FENCE)]
