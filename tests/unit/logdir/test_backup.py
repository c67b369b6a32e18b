"""What surrounds a cut: the backup, the targets, the command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mirror_core.model.errors import BadRequest, Refused
from mirror_core.model.names import Partition
from mirrorbook_tools.logdir.backup import MANIFEST_NAME, BackupDiffers, write_backup
from mirrorbook_tools.logdir.layout import parse_topic_id
from mirrorbook_tools.logdir.partition_truncation import perform_action
from mirrorbook_tools.logdir.stopped_broker import (
    TruncationTargets,
    hold_stopped_broker,
    parse_targets,
    plan_broker_truncation,
    read_targets,
)
from tests.support.cli_process import mirrorbook
from tests.support.log_directories import CLUSTER, KAFKA_ID, TOPIC_ID, Broker, stored
from tests.support.log_segments import LOG, cut, in_segments, plan_of, single


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    made = Broker.make(tmp_path / "data")
    made.add("t-0", in_segments(LOG, [2, 4]))
    return made


def test_a_backup_holds_what_goes_and_is_left_alone_by_the_next_attempt(tmp_path: Path, broker: Broker) -> None:
    place, targets = tmp_path / "backup", parse_targets(["t-0=15"])
    whole_log = [(h.base_offset, h.next_offset, h.attributes) for h in LOG]
    with hold_stopped_broker([broker.log_dir]) as log_dirs:
        plan = plan_broker_truncation(log_dirs, targets)
        write_backup(place, plan.owner, plan.due_truncations, [broker.log_dir])
        manifest = (place / MANIFEST_NAME).read_bytes()
        assert place.stat().st_mode & 0o077 == 0, "records are for their owner's eyes"
        for action in single(plan.truncations[0].actions)[:6]:
            perform_action(Partition("t", 0), action)
    cut(broker, targets, place)
    assert (place / MANIFEST_NAME).read_bytes() == manifest
    kept = broker.log_dir / "t-0"
    assert stored(kept) == whole_log[:1]
    first = kept / f"{0:020d}.log"
    size = first.stat().st_size
    with first.open("ab") as log:
        log.write((place / "t-0" / f"{first.name}.from-{size}").read_bytes())
    for path in (place / "t-0").glob("*.log"):
        shutil.copy(path, kept)
    assert stored(kept) == whole_log


def test_a_backup_that_was_not_completed_is_made_anew(tmp_path: Path, broker: Broker) -> None:
    place, targets = tmp_path / "backup", parse_targets(["t-0=15"])
    place.mkdir()
    (place / MANIFEST_NAME).write_text(f'{{"cluster_id":"{CLUSTER}","node_id":"1","complete":false,"partitions":[]}}')
    (place / "t-0").mkdir()
    (place / "t-0" / f"{40:020d}.log").write_bytes(b"half")
    gone = (broker.log_dir / "t-0" / f"{40:020d}.log").read_bytes()
    cut(broker, targets, place)
    assert (place / "t-0" / f"{40:020d}.log").read_bytes() == gone


def test_nothing_is_cut_without_a_sound_backup(tmp_path: Path, broker: Broker) -> None:
    targets = parse_targets(["t-0=15"])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(Refused, match="holds something else"):
        cut(broker, targets, tmp_path / "full")
    with pytest.raises(Refused, match="the broker would take it for a log"):
        cut(broker, targets, broker.log_dir / "backup")
    plan = plan_of(broker, "t-0=15")
    place = tmp_path / "backup"
    write_backup(place, plan.owner, plan.due_truncations, [])
    with pytest.raises(Refused, match="is of another cut"):
        cut(broker, parse_targets(["t-0=5"]), place)
    (place / "t-0" / f"{40:020d}.log").write_bytes(b"rotten")
    with pytest.raises(BackupDiffers):
        cut(broker, targets, place)
    assert stored(broker.log_dir / "t-0")[-1][1] == 51


def test_targets_of_a_failback_s_file(tmp_path: Path, broker: Broker) -> None:
    path = tmp_path / "points.json"

    def said(cluster: str, topic_id: str, partitions: str) -> TruncationTargets:
        topics = f'{{"t": {{"id": "{topic_id}", "partitions": {partitions}}}}}'
        path.write_text(f'{{"cluster_id": "{cluster}", "run": "r1", "topics": {topics}}}', encoding="utf-8")
        return read_targets(path)

    for one in (KAFKA_ID, TOPIC_ID):
        with hold_stopped_broker([broker.log_dir]) as log_dirs:
            plan = plan_broker_truncation(log_dirs, said(CLUSTER, one, '{"0": 15, "3": 9}'))
        assert ([c.offset for c in plan.truncations], plan.absent) == ([10], [Partition("t", 3)])
    with hold_stopped_broker([broker.log_dir]) as log_dirs:
        for targets, reason in (
            (said("another", TOPIC_ID, '{"0": 15}'), "is for another"),
            (said(CLUSTER, str(parse_topic_id("A" * 22)), '{"0": 15}'), "it was recreated"),
            (said(CLUSTER, TOPIC_ID, '{"3": 15}'), "t-3 is not in"),
        ):
            with pytest.raises(Refused, match=reason):
                plan_broker_truncation(log_dirs, targets)
    for partitions in ('{"0": -1}', '{"x": 1}', "[]"):
        with pytest.raises(BadRequest):
            said(CLUSTER, TOPIC_ID, partitions)
    with pytest.raises(BadRequest):
        said(CLUSTER, "no id", '{"0": 1}')
    with pytest.raises(BadRequest):
        read_targets(tmp_path / "none")


@pytest.mark.parametrize("word", ["t-0", "t=5", "t-0=-5", "t-0=x", "../t-0=5", "a/b-0=5", "..-0=5", "-0=5"])
def test_words_that_are_no_target(word: str) -> None:
    with pytest.raises(BadRequest):
        parse_targets([word])
    with pytest.raises(BadRequest, match="twice"):
        parse_targets(["t-0=5", "t-0=6"])


def test_the_command_wants_one_word_on_where_to_cut_and_tells_machines_what_it_would_do(broker: Broker) -> None:
    command = ("log", "truncate", "--log-dir", str(broker.log_dir))
    for words in ((), ("--to", "points.json", "--partition", "t-0=15")):
        said = mirrorbook(*command, *words)
        assert said.returncode == 2
        assert "where should logs end? Give --to FILE, or --partition" in said.stderr
    said = mirrorbook(*command, "--partition", "t-0=45", "--dry-run", "--json")
    assert said.returncode == 0, said.stderr
    told = json.loads(said.stdout)
    assert (told["cluster_id"], told["node_id"], told["clean_shutdown"], told["done"]) == (CLUSTER, "1", True, False)
    [partition] = told["partitions"]
    assert (partition["log_end"], partition["boundary"], partition["offset"]) == (51, 41, 20)
    assert partition["open"] == [{"producer_id": 2, "since": 30}]
    assert stored(broker.log_dir / "t-0")[-1][1] == 51
