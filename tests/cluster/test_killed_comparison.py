"""A comparison whose process is killed: what it had compared is known, and only the chunks it was at are read twice."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer

from mirror_core.decide.parity_result import CHUNK_OFFSETS, ParityRow
from mirror_core.mirrors import incremental_verification
from mirror_core.parity import check
from mirror_core.parity.check import DEFAULT_THREADS
from mirror_core.parity.compare import CompareTask, compare_task
from tests.support.cli_process import Forked, invoked
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.waiting import patience, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

CHUNKS = 3 * DEFAULT_THREADS
"""Of one partition: a round and a half, since a round has twice as many as there are threads."""
CHUNK_S = 10.0
"""That the throttle makes of each."""


def note_chunks(log: Path) -> None:
    """In the process that compares: a line for each chunk that it has compared. Its threads end their first chunks
    together, but not in one moment: what one of them has found is kept as soon as it is known."""

    def noting(task: CompareTask) -> tuple[ParityRow, ...]:
        rows = compare_task(task)
        with log.open("a") as file:
            file.write(f"{task.pieces[0].start}\n")
        return rows

    patched = pytest.MonkeyPatch()
    patched.setattr(check, "compare_task", noting)
    patched.setattr(check, "PROGRESS_INTERVAL_S", 0.0)
    patched.setattr(incremental_verification, "PROOF_SAVE_INTERVAL_S", 0.0)


def proved(mirrored: Mirrored) -> int:
    proof = mirrored.state.verifications.get(mirrored.name)
    return sum(one.records for _, _, one in proof.iterate_partitions()) if proof else 0


def test_what_was_compared_when_it_was_killed_is_not_read_twice(pair: Pair, tmp_path: Path) -> None:
    records, topic = CHUNKS * CHUNK_OFFSETS, new_topic(pair.east, retention_ms="-1")
    settings = {"enable.idempotence": True, "queue.buffering.max.messages": records}
    producer = Producer({**pair.east.client_config("admin"), **settings})
    for _ in range(records):
        producer.produce(topic, b"", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    mirrored = new_mirror(pair, tmp_path / "evidence", topic)
    mirrored.copy()
    size = sum(log.stat().st_size for log in (pair.east.log_dir() / f"{topic}-0").glob("*.log"))
    rate = (
        int(2 * size / CHUNKS / CHUNK_S) * DEFAULT_THREADS
    )  # each thread reads its chunk on both sides, one after the other
    command = ["parity", mirrored.name, "--runner", "local", "--config", str(mirrored.config.path), "--json"]
    compared, said = tmp_path / "compared", tmp_path / "said"
    compared.touch()
    out = ["--output", str(tmp_path / "one"), "--throttle", f"{rate}B"]
    process = Forked(*command, *out, log=said, before=partial(note_chunks, compared))
    try:
        wait_until(
            lambda: proved(mirrored) >= DEFAULT_THREADS * CHUNK_OFFSETS or process.poll() is not None,
            timeout_s=patience(10 * CHUNK_S),
            why="nothing is proved",
        )
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
    done, before = len(compared.read_text().split()), proved(mirrored)
    assert before == done * CHUNK_OFFSETS, "what was compared is read twice"
    assert done == DEFAULT_THREADS, "it was killed when each thread was at its second chunk"
    again = invoked(*command, "--output", str(tmp_path / "two"))
    assert again.exit_code == 0, again.output
    assert f"{before} records were proved before" in again.stderr
    assert json.loads(again.stdout)["records"] == records - before, "but for what four threads were at, nothing twice"
    assert proved(mirrored) == records
