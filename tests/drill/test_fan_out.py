"""One source, two mirrors: its topics move to one cluster, and the other one is not shut by what fences the source."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from mirror_core.kafka.config import load_config
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.mirror_creation import create_mirror
from mirror_core.model.acl import AclPurpose
from mirror_core.model.names import MirrorName
from mirror_core.model.sync_state import SyncAction
from mirror_core.sync.fence_acls import build_denials
from tests.support.dedicated_clusters import third_cluster
from tests.support.failback_runs import failback_of
from tests.support.failover_runs import app_topic, begin
from tests.support.kafka_clients import Pair, produce
from tests.support.mirrored_topics import Mirrored
from tests.support.sentences import format_sentence

pytestmark = [pytest.mark.cluster, pytest.mark.drill]


def test_the_fence_of_one_mirror_is_no_rule_for_another(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 10)
    with third_cluster(pair, tmp_path) as (south, path):
        config = load_config(path)
        there = dict[str, Mirrored]()
        for cluster in ("west", "south"):
            name = MirrorName("m-" + secrets.token_hex(4))
            create_mirror(config, name, source="east", destination=cluster, topics=(topic,), groups=())
            there[cluster] = Mirrored(pair, config, name, tmp_path)
            mirror_commands.start_mirror(there[cluster].link)
            there[cluster].copy()
        west = there["west"]
        run = there["south"].failover
        run.drive(begin(run))

        home = tuple(map(str, failback_of(there["south"]).plan().warnings))
        assert format_sentence("sibling_reached_by_what_comes_home", west.name, topic, "east", "west", "west") in home

        (fence,) = build_denials([topic])
        subject = str(fence)
        assert subject not in {row.subject for row in mirror_commands.run_sync(west.link).rows}

        south.terminate()
        (row,) = [row for row in mirror_commands.run_sync(west.link).rows if row.subject == subject]
        assert row.action is SyncAction.SKIP
        assert "south: no answer" in row.reason
        staged = {e.acl for e in west.state.ledger_entries(west.name) if e.purpose is AclPurpose.STAGED}
        assert staged
        assert fence not in staged
