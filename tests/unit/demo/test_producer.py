"""The demo's producer gives each number out once, whatever its client says to it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import cast

import pytest

from mirrorbook_tools.demo import producer
from mirrorbook_tools.demo.discovery import Discovery
from mirrorbook_tools.demo.producer import SETTINGS, Ordering
from mirrorbook_tools.sandbox.sandbox import Sandbox


class Nowhere:
    """Clusters that nobody answers for: the client refuses before it would send."""

    def cluster(self, name: str) -> Nowhere:
        return self

    def client_config(self, user: str) -> dict[str, str]:
        return {"bootstrap.servers": "127.0.0.1:1"}


def test_a_number_that_the_client_refuses_at_once_stays_open_and_is_given_out_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "SETTINGS", {**SETTINGS, "message.max.bytes": 1000})
    monkeypatch.setattr(producer, "value_of", lambda number: b"x" * 5000)
    Discovery(tmp_path / "primary").switch("east")
    log = io.StringIO()
    application = Ordering(cast("Sandbox", Nowhere()), tmp_path, log)

    for _ in range(3):
        application.work("east")

        assert application.failure is not None
        assert application.next == 1
        assert [list(numbers) for numbers in application.open.values()] == [[0], [], []]
    assert log.getvalue() == ""
