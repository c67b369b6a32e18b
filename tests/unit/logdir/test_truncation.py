"""Cutting logs in folders of a stopped broker: to where, in which order, and what is refused."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_core.model.errors import Refused
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.batch import BatchHeader
from mirrorbook_tools.logdir.layout import LOG_START_CHECKPOINT, NotTruncatable
from mirrorbook_tools.logdir.partition_truncation import (
    LowerCheckpoint,
    PartitionTruncation,
    ShortenSegment,
    perform_action,
    perform_truncations,
)
from mirrorbook_tools.logdir.stopped_broker import (
    hold_stopped_broker,
    parse_targets,
    plan_broker_truncation,
)
from tests.support import log_segments
from tests.support.cut_logs import data, logs
from tests.support.log_directories import Broker, open_behind, snapshot, stored
from tests.support.log_segments import LOG, cut, in_segments, plan_of, single
from tests.support.sentences import format_sentence

broker = log_segments.broker


def cut_size(broker: Broker) -> int:
    return sum(path.stat().st_size for path in (broker.log_dir / "t-0").glob("*.log"))


def highest_quiet_end(log: Sequence[BatchHeader], target: int) -> int:
    """The same as `find_cut_point`, found by looking at each place anew."""
    places = [0, *(header.next_offset for header in log)]
    return max(end for number, end in enumerate(places) if end <= target and not open_behind(log[:number]))


@settings(max_examples=25)
@given(st.data())
def test_whatever_is_killed_and_when_the_same_log_is_left(drawn: st.DataObject) -> None:
    log = drawn.draw(logs())
    firsts = drawn.draw(st.lists(st.integers(0, len(log)), max_size=4)) if log else []
    target = drawn.draw(st.integers(0, 60))
    snapshots, clean = drawn.draw(st.booleans()), drawn.draw(st.booleans())
    expected = highest_quiet_end(log, target)
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker.make(Path(folder) / "whole")
        broker.add("t-0", in_segments(log, [n for n in firsts if n < len(log)]), snapshots=snapshots)
        broker.note("cleaner-offset-checkpoint", {Partition("t", 0): 40, Partition("u", 0): 7})
        if not clean:
            (broker.log_dir / ".kafka_cleanshutdown").unlink()
        if snapshots and open_behind(log):
            with pytest.raises(Refused, match="transactions are open at its end"):
                plan_of(broker, f"t-0={target}")
            return
        [found] = plan_of(broker, f"t-0={target}").truncations
        assert found.offset == expected
        if not found.actions:
            assert expected == found.log_end
            return
        lost = [header for header in log if header.next_offset > expected]
        assert (found.removed.batches, found.removed.bytes > 0) == (len(lost), bool(lost))
        ends = set()
        for done in range(len(single(found.actions)) + 1):
            copied = Broker(Path(folder) / str(done))
            shutil.copytree(broker.log_dir, copied.log_dir)
            [again] = plan_of(copied, f"t-0={target}").truncations
            for action in single(again.actions)[:done]:
                perform_action(Partition("t", 0), action)
                assert whole(copied.log_dir / "t-0"), "a broker that starts now finds a hole, or an index too long"
            cut(copied, parse_targets([f"t-0={target}"]))
            left = copied.log_dir / "t-0"
            assert stored(left) == [(h.base_offset, h.next_offset, h.attributes) for h in log[: len(log) - len(lost)]]
            assert (copied.log_dir / "cleaner-offset-checkpoint").read_text(encoding="utf-8") == (
                f"0\n2\nt 0 {min(40, expected)}\nu 0 7\n"
            )
            ends.add(frozenset((path.name, path.stat().st_size) for path in left.iterdir()))
        [files] = ends
        last = max(name for name, _ in files if name.endswith(".log")).removesuffix(".log")
        assert not [name for name, _ in files if name.startswith(last) and name.endswith("index")]
        assert not [name for name, _ in files if name.endswith(".snapshot") and int(name[:20]) > expected]
        assert {"partition.metadata", "leader-epoch-checkpoint"} <= {name for name, _ in files}


def whole(folder: Path) -> bool:
    """Each index that is left belongs to a segment as long as ever, and no segment is missing below another one."""
    whole_before = {path.name for path in (folder.parents[1] / "whole" / "t-0").glob("*.log")}
    names = sorted(path.name for path in folder.glob("*.log"))
    held = {
        path.name for path in folder.glob("*.log")
        if path.stat().st_size == (folder.parents[1] / "whole" / "t-0" / path.name).stat().st_size
    }  # fmt: skip
    indexed = {f"{path.stem}.log" for path in folder.glob("*index")}
    return names == sorted(whole_before)[: len(names)] and indexed <= held


@pytest.mark.parametrize(("target", "offset"), [(0, 0), (9, 0), (15, 10), (39, 20), (50, 20), (51, 51), (99, 51)])
def test_places(broker: Broker, target: int, offset: int) -> None:
    assert cut(broker, parse_targets([f"t-0={target}"])).truncations[0].offset == offset
    assert plan_of(broker, f"t-0={target}").due_truncations == []


def test_a_hole_that_compaction_left_before_a_segment_is_no_part_of_the_log(broker: Broker) -> None:
    broker.add("holes-0", {0: [data(0, 9)], 20: [data(20, 29)], 40: [data(40, 49)]})
    [found] = cut(broker, parse_targets(["holes-0=25"])).truncations
    assert (found.boundary, found.offset) == (10, 10)


def test_only_what_has_to_be_read_is_read(broker: Broker) -> None:
    """From the newest segment of which the broker noted what was open: damage below it is not seen."""
    log = [data(10 * n, 10 * n + 9) for n in range(9)]
    folder = broker.add("long-0", in_segments(log, [3, 6]))
    lower = folder / f"{0:020d}.log"
    lower.write_bytes(bytes(lower.stat().st_size))
    assert plan_of(broker, "long-0=75").truncations[0].offset == 70
    noted = bytearray(snapshot({}))
    noted[-9] ^= 1
    (folder / f"{60:020d}.snapshot").write_bytes(noted)  # not to be believed: its checksum says so
    (folder / f"{30:020d}.snapshot").write_bytes(snapshot({})[:-1])
    with pytest.raises(Refused, match="damaged"):
        plan_of(broker, "long-0=75")


@pytest.mark.parametrize(("place", "bits"), [(65, 1), (16, 0x80), (16, 1)])
def test_damage_in_what_stays_is_found(broker: Broker, place: int, bits: int) -> None:
    """A batch's magic is covered by no CRC."""
    first = broker.log_dir / "t-0" / f"{0:020d}.log"
    content = bytearray(first.read_bytes())
    content[place] ^= bits
    first.write_bytes(content)
    with pytest.raises(Refused, match=format_sentence("batch_damaged", 0)):
        plan_of(broker, "t-0=15")


def test_a_half_written_batch_is_the_end_of_a_log_whose_broker_was_killed(broker: Broker) -> None:
    last = broker.log_dir / "t-0" / f"{40:020d}.log"
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(Refused, match="are no whole batch"):
        plan_of(broker, "t-0=15")
    (broker.log_dir / ".kafka_cleanshutdown").unlink()
    plan = plan_of(broker, "t-0=15")
    assert (plan.has_clean_shutdown, plan.truncations[0].log_end, plan.truncations[0].removed.records) == (
        False,
        50,
        None,
    )


def test_a_first_segment_keeps_its_name_when_nothing_is_left_in_it(broker: Broker) -> None:
    log = [data(100 + 10 * n, 109 + 10 * n) for n in range(4)]
    folder = broker.add("late-0", {100: log[:2], 120: log[2:]})
    assert cut(broker, parse_targets(["late-0=105"])).truncations[0].offset == 100
    assert [(path.name, path.stat().st_size) for path in folder.glob("*.log")] == [(f"{100:020d}.log", 0)]
    with pytest.raises(Refused, match="the log starts at 100, behind 99"):
        plan_of(broker, "late-0=99")


def folder_beside(suffix: str) -> Callable[[Broker], object]:
    def change(broker: Broker) -> None:
        shutil.copytree(broker.log_dir / "t-0", broker.log_dir / f"t-0.0123456789abcdef0123456789abcdef-{suffix}")
        if suffix != "future":
            shutil.rmtree(broker.log_dir / "t-0")

    return change


def written(name: str, text: str) -> Callable[[Broker], object]:
    return lambda broker: (broker.log_dir / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (written("meta.properties", "cluster.id=x\nbroker.id=1\nversion=0\n"), "is not of version 1"),
        (lambda broker: (broker.log_dir / "meta.properties").unlink(), "it is no log directory of a broker"),
        (folder_beside("future"), "it is being moved between log directories"),
        (folder_beside("delete"), "the broker does not use it any more"),
        (folder_beside("stray"), "the broker does not use it any more"),
        (written("t-0/00000000000000000000.log.swap", ""), "If a compaction left it"),
        (written("t-0/remote_log_snapshot", ""), "in remote storage"),
        (written("log-start-offset-checkpoint", "0\n1\nt 0 0\n"), "the older part is in remote storage"),
        (written("log-start-offset-checkpoint", "0\n1\nt 0 16\n"), "the log starts at 16, behind 15"),
        (written("log-start-offset-checkpoint", "0\n1\nt 0 12\n"), "behind the log start 12: recreate the topic"),
        (written("log-start-offset-checkpoint", "1\n"), "is no checkpoint of version 0"),
        (written("t-0/partition.metadata", "version: 1\ntopic_id: x"), "names no topic id"),
        (lambda broker: (broker.log_dir / "t-0" / "partition.metadata").unlink(), "so the layout is not known"),
        (lambda broker: shutil.rmtree(broker.log_dir / "t-0"), "is that all of log.dirs?"),
    ],
)
def test_what_is_not_known_is_refused(broker: Broker, change: Callable[[Broker], object], reason: str) -> None:
    change(broker)
    before = sorted((str(path), path.stat().st_mtime_ns) for path in broker.log_dir.rglob("*") if path.is_file())
    with pytest.raises(Refused, match=reason.replace("?", r"\?").replace(".", r"\.")):
        plan_of(broker, "t-0=15")
    after = sorted((str(path), path.stat().st_mtime_ns) for path in broker.log_dir.rglob("*") if path.is_file())
    assert after == before


def test_of_a_file_for_several_brokers_what_was_moved_away_is_elsewhere(broker: Broker) -> None:
    """A failback leaves each partition to one broker just before: the others delete theirs a minute later."""
    broker.add("u-0", {0: LOG[:2]})
    folder_beside("delete")(broker)
    targets = replace(parse_targets(["t-0=15", "u-0=15"]), requires_all=False)
    plan = cut(broker, targets)
    assert (plan.absent, [c.offset for c in plan.truncations]) == ([Partition("t", 0)], [10])
    shutil.rmtree(broker.log_dir / "u-0")
    with pytest.raises(Refused, match=r"t-0 is not in .*: is that all of log\.dirs\?"):
        cut(broker, targets)


def test_internal_topics_are_not_cut(broker: Broker) -> None:
    with pytest.raises(Refused, match="__consumer_offsets-0: it is an internal topic"):
        plan_of(broker, "__consumer_offsets-0=15")


def test_open_at_its_end_waits_for_its_markers(broker: Broker) -> None:
    broker.add("open-0", {0: LOG[:4]})
    with pytest.raises(Refused, match=r"transactions are open at its end 40 \(of producer ids 1, 2\)"):
        plan_of(broker, "open-0=25")
    assert plan_of(broker, "t-0=25").truncations[0].offset == 20


def test_several_log_directories_are_one_broker_s_and_hold_a_partition_once(tmp_path: Path, broker: Broker) -> None:
    other = Broker.make(tmp_path / "more")
    other.add("u-0", {0: LOG[:2]})
    with hold_stopped_broker([broker.log_dir, other.log_dir]) as log_dirs:
        assert [
            c.offset for c in plan_broker_truncation(log_dirs, parse_targets(["t-0=15", "u-0=15"])).truncations
        ] == [10, 10]
    other.add("t-0", {0: LOG})
    with (
        hold_stopped_broker([broker.log_dir, other.log_dir]) as log_dirs,
        pytest.raises(Refused, match="only one of them"),
    ):
        plan_broker_truncation(log_dirs, parse_targets(["t-0=15"]))
    stranger = Broker.make(tmp_path / "stranger", node=2)
    with (
        pytest.raises(Refused, match="node 2: give one broker's only"),
        hold_stopped_broker([broker.log_dir, stranger.log_dir]),
    ):
        pass


def test_a_running_broker_s_directory_is_refused_and_none_starts_meanwhile(broker: Broker) -> None:
    lock = broker.log_dir / ".lock"
    lock.touch()
    words = "f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print(flush=True); input()"
    command = [sys.executable, "-c", f"import fcntl, sys; {words}", str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        with pytest.raises(Refused, match="is in use: stop its broker first"):
            plan_of(broker, "t-0=15")
        running.communicate(b"\n")
    with hold_stopped_broker([broker.log_dir]):
        assert subprocess.run(command, input=b"\n", check=False, capture_output=True).returncode == 1
    assert lock.exists()
    with lock.open("r+") as free:
        fcntl.lockf(free, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock.unlink()
    assert plan_of(broker, "t-0=15").truncations
    assert not lock.exists(), "what was not there is not left there"


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path, broker: Broker) -> None:
    other = tmp_path / "somebody's"
    other.write_text("untouched", encoding="utf-8")
    (broker.log_dir / ".lock").symlink_to(other)
    with pytest.raises(Refused, match=r"\.lock: it is a symbolic link"), hold_stopped_broker([broker.log_dir]):
        pass
    assert (broker.log_dir / ".lock").is_symlink()


@pytest.mark.parametrize("linked", ["t-0", "t-0/00000000000000000000.log"])
def test_partitions_and_segments_that_are_links_are_refused(tmp_path: Path, broker: Broker, linked: str) -> None:
    before = cut_size(broker)
    path = broker.log_dir / linked
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="is a symbolic link"):
        cut(broker, parse_targets(["t-0=20"]))
    assert cut_size(broker) == before


def test_a_segment_that_becomes_a_link_is_not_cut(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(bytes(100))
    (tmp_path / "0.log").symlink_to(other)
    with pytest.raises(OSError, match="symbolic link"):
        perform_action(Partition("orders", 0), ShortenSegment(tmp_path / "0.log", 10))
    (tmp_path / LOG_START_CHECKPOINT).write_text("0\n0\n", encoding="utf-8")
    (tmp_path / f"{LOG_START_CHECKPOINT}.tmp").symlink_to(other)
    perform_action(Partition("orders", 0), LowerCheckpoint(tmp_path / LOG_START_CHECKPOINT, Offset(3)))
    assert other.read_bytes() == bytes(100)
    assert (tmp_path / LOG_START_CHECKPOINT).read_text(encoding="utf-8") == "0\n1\norders 0 3\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave files to another user")
@pytest.mark.parametrize("place", ["", "t-0"])
def test_root_does_not_cut_what_another_user_can_change(broker: Broker, place: str) -> None:
    """Whoever may write there can exchange a file for a link at any moment."""
    folder = broker.log_dir / place
    os.chown(folder, 1234, 1234)
    with pytest.raises(Refused, match="belongs to #1234, and root would follow any link"):
        cut(broker, parse_targets(["t-0=20"]))
    os.chown(folder, 0, 0)
    folder.chmod(0o775)
    with pytest.raises(Refused, match="can be changed by others than root"):
        cut(broker, parse_targets(["t-0=20"]))
    assert not (broker.log_dir / ".lock").exists()


def test_a_cut_that_cannot_be_seen_is_no_success(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrorbook_tools.logdir.partition_truncation.perform_action", lambda partition, action: None)
    done: list[PartitionTruncation] = []
    with (
        hold_stopped_broker([broker.log_dir]) as log_dirs,
        pytest.raises(Exception, match="ends at 51, not at 10") as raised,
    ):
        perform_truncations(
            plan_broker_truncation(log_dirs, parse_targets(["t-0=15"])).due_truncations, log_dirs, done.append
        )
    assert not isinstance(raised.value, NotTruncatable)
    assert done == []
