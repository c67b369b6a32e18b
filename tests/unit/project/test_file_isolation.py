"""Whoever leaves something open is told so itself."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from aiokafka.errors import KafkaConnectionError

from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.kafka_clients import read_all_aiokafka

ROOT = Path(__file__).resolve().parents[3]
LEAKS = """
import gc
import socket

gc.disable()  # by itself it may collect at any moment, and charge whoever runs then

def test_leaks():
    left = [socket.socket()]
    left.append(left)  # only the collector finds it

def test_other():
    pass
"""


def test_a_reader_that_reaches_nobody_leaves_nothing_open() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.password": "none"}
        port = nobody.getsockname()[1]
        dead = SimpleNamespace(bootstrap=f"127.0.0.1:{port}", client_config=lambda user: login, name="dead")
        with pytest.raises(KafkaConnectionError):
            read_all_aiokafka(cast(SandboxCluster, dead), "topic")
    gc.collect()


def test_what_is_left_open_is_charged_to_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(LEAKS, encoding="utf-8")
    (tmp_path / "test_b.py").write_text("import gc\n\ndef test_collects():\n    gc.collect()\n", encoding="utf-8")
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.support.file_isolation"]', encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-o", "filterwarnings=error", str(tmp_path)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert "3 passed, 1 error" in said, said
    (charged,) = (line for line in said.splitlines() if line.startswith("ERROR "))
    assert "test_a.py::test_other" in charged, said
