"""Receipts of whole days are put together, whoever is killed meanwhile."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from mirror_core.evidence.file_store import LocalFolder
from mirror_core.evidence.receipt_index import CheckedReceipts
from mirror_core.mirrors.receipt_maintenance import compact_receipts
from mirror_core.model.parity_verdict import ParityVerdict
from mirror_core.model.receipt_heads import ReceiptsHead
from mirror_core.state.state_records import Tombstone
from mirror_core.state.writer import StateWriter, make_control_id
from tests.cluster.copied import TOMORROW, Copied, copied, mixed
from tests.support.cli_process import invoked
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client
from tests.support.parity_topics import content
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


class Killed(BaseException):
    """What ends a process at once."""


class Mortal(LocalFolder):
    """Ends before or after its n-th write or removal."""

    def __init__(self, path: Path, *, left: int, after: bool) -> None:
        super().__init__(path)
        self.left, self.after = left, after

    def write(self, what: str, name: str, content: bytes, advice: str) -> None:
        self._action(lambda: super(Mortal, self).write(what, name, content, advice))

    def remove(self, what: str, name: str, advice: str) -> None:
        self._action(lambda: super(Mortal, self).remove(what, name, advice))

    def _action(self, action: Callable[[], None]) -> None:
        if not self.left and not self.after:
            raise Killed
        action()
        if not self.left:
            raise Killed
        self.left -= 1


@pytest.mark.slow
def test_a_compaction_killed_at_any_action_leaves_receipts_that_say_the_same(pair: Pair, tmp_path: Path) -> None:
    made = copied(pair, tmp_path, mixed(100), content(30))
    link, before, whole = made.mirrored.link, made.scope.certified, tmp_path / "whole"
    shutil.copytree(made.receipts.path, whole)
    heads = made.mirrored.state.receipts[made.mirrored.name]
    for left in range(3):  # one file is written, and two are removed
        for after in (False, True):
            with pytest.raises(Killed):
                compact_receipts(link, Mortal(made.receipts.path, left=left, after=after), TOMORROW)
            killed = made.scope
            assert (killed.certified, killed.checked.is_sound) == (before, True)
            compact_receipts(link, made.receipts, TOMORROW)
            [one] = made.receipts.names()
            assert "/day-" in one
            if (left, after) != (2, True):
                _as_before(made, heads, whole)
    scope = made.scope
    assert (scope.certified, scope.checked.left_over) == (before, ())
    assert made.proved(scope).verdict is ParityVerdict.PASSED


def test_a_day_of_which_nothing_is_left_leaves_no_file_and_no_alarm(pair: Pair, tmp_path: Path) -> None:
    made = copied(pair, tmp_path, content(100))
    admin = admin_client(pair.west)
    admin.delete_topics([made.topic])[made.topic].result(TIMEOUT_S)
    wait_until(lambda: made.topic not in admin.list_topics().topics, timeout_s=TIMEOUT_S, why="it is gone")
    for files in ([1], []):
        done = compact_receipts(made.mirrored.link, made.receipts, TOMORROW)
        assert [before for before, _ in done.files.values()] == files
        assert made.receipts.names() == []
        assert made.scope.checked == CheckedReceipts(readable=())


def test_the_command_puts_days_together_and_says_how_many_files_there_were(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = copied(pair, tmp_path, content(100), content(30))
    assert len(made.receipts.names()) == 2
    monkeypatch.setattr("mirror_core.cli.receipts.first_open_day", lambda: TOMORROW)
    command = ["receipts", "compact", made.mirrored.name, "--receipts", str(made.receipts.path), "--runner", "local"]
    command += ["--config", str(pair.config_path), "--json"]
    said = invoked(*command)
    assert said.exit_code == 0, said.output
    answer = json.loads(said.stdout)
    assert ([*answer["days"].values()], answer["left"]) == ([[2, 1]], {})
    assert len(made.receipts.names()) == 1
    assert made.proved().verdict is ParityVerdict.PASSED


def _as_before(made: Copied, heads: Mapping[str, ReceiptsHead], files: Path) -> None:
    shutil.rmtree(made.receipts.path)
    shutil.copytree(files, made.receipts.path)
    with StateWriter(made.mirrored.link.destination, make_control_id(made.mirrored.name)) as writer:
        told = writer.state.receipts[made.mirrored.name]
        writer.put(*(Tombstone(head) for part, head in told.items() if part not in heads), *heads.values())
