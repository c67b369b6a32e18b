"""What the sandbox decides about folders, ports and jars before any broker is involved."""

from __future__ import annotations

import fcntl
import hashlib
import socket
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from mirror_core.java import SUPPORTED_JAVA_VERSIONS, find_java_home, read_feature_version
from mirror_core.model.errors import BadRequest
from mirrorbook_tools.sandbox import jars
from mirrorbook_tools.sandbox.errors import SandboxFailed
from mirrorbook_tools.sandbox.ports import HOST, choose_ports, is_free
from mirrorbook_tools.sandbox.sandbox import Sandbox
from mirrorbook_tools.sandbox.sandbox_folder import LOCK_FILE
from mirrorbook_tools.sandbox.state import STATE_FILE, ClusterState, NodePorts, SandboxState, load_state, save_state


def some_state() -> SandboxState:
    nodes = (NodePorts(client=20_001, controller=20_002),)
    return SandboxState(
        clusters={name: ClusterState(cluster_id=f"id-{name}", nodes=nodes) for name in ("east", "west")},
        extra={"log.cleaner.enable": "false"},
    )


def test_state_survives_the_way_through_its_file(tmp_path: Path) -> None:
    save_state(tmp_path, some_state())
    assert load_state(tmp_path) == some_state()


def test_a_half_written_state_is_named_and_not_guessed(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_text('{"format": 1, "clusters"')
    with pytest.raises(SandboxFailed, match=r"sandbox\.json is damaged"):
        load_state(tmp_path)


@pytest.mark.parametrize("act", ["up", "down"])
def test_a_folder_with_somebody_elses_files_is_left_alone(tmp_path: Path, act: str) -> None:
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("years of work")
    sandbox = Sandbox(tmp_path)
    with pytest.raises(BadRequest, match=r"not a sandbox and not empty \(it holds thesis.tex\)"):
        sandbox.up() if act == "up" else sandbox.down(delete=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_deleting_keeps_files_that_were_put_beside_ours(tmp_path: Path) -> None:
    save_state(tmp_path, some_state())
    (tmp_path / "mirrorbook.yaml").touch()
    assert Sandbox(tmp_path).down(delete=True) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["mirrorbook.yaml"]


def test_down_where_nothing_is_makes_nothing(tmp_path: Path) -> None:
    assert Sandbox(tmp_path / "nowhere").down(delete=True) == 0
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("act", ["up", "down"])
def test_only_one_works_in_a_folder_at_a_time(tmp_path: Path, act: str) -> None:
    with open(tmp_path / LOCK_FILE, "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sandbox = Sandbox(tmp_path)
        with pytest.raises(SandboxFailed, match="another `mirrorbook sandbox up` or `down` is at work"):
            sandbox.up() if act == "up" else sandbox.down()


def test_a_folder_that_cannot_be_made_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SandboxFailed, match=r"cannot write the sandbox in .*/file/below: Not a directory"):
        Sandbox(tmp_path / "file" / "below").up()


def test_lost_passwords_are_not_replaced_while_brokers_know_the_old_ones(tmp_path: Path) -> None:
    save_state(tmp_path, some_state())
    (tmp_path / "east" / "1").mkdir(parents=True)
    (tmp_path / "east" / "1" / "formatted").touch()
    with pytest.raises(SandboxFailed, match=r"secrets\.properties is gone"):
        Sandbox(tmp_path).up()


def test_an_impossible_number_of_nodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="1 or 3 nodes"):
        Sandbox(tmp_path / "new").up(nodes=2)
    assert not (tmp_path / "new").exists()


def test_ports_are_different_free_and_out_of_the_clients_range() -> None:
    chosen = choose_ports(12)
    assert len(set(chosen)) == 12
    assert all(is_free(port) for port in chosen)
    with closing(socket.socket()) as client:
        client.bind((HOST, 0))
        assert client.getsockname()[1] > max(chosen)


def test_a_port_that_somebody_listens_on_is_not_free() -> None:
    with closing(socket.create_server((HOST, 0))) as listener:
        assert not is_free(listener.getsockname()[1])


def test_a_jar_that_was_changed_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lock = tmp_path / "jars.lock"
    good = hashlib.sha256(b"good").hexdigest()
    lock.write_text(f"# sha256 org name revision\n{good} org one 1.0\n{good} org two 2.0\n")
    asked: list[str] = []

    def note(wanted: Sequence[jars.Jar], folder: Path) -> None:
        asked.extend(jar.name for jar in wanted)

    monkeypatch.setattr(jars, "_fetch", note)
    folder = jars.jars_dir(lock)
    folder.mkdir(parents=True)
    (folder / "one-1.0.jar").write_bytes(b"good")
    (folder / "two-2.0.jar").write_bytes(b"evil")
    assert jars.ensure_jars(lock) == folder
    assert asked == ["two"]


def test_a_lock_may_name_another_jar_of_a_module_than_the_main_one(tmp_path: Path) -> None:
    lock = tmp_path / "jars.lock"
    lock.write_text("# sha256 org name revision classifier\naa org one 1.0\nbb org one 1.0 test\n")
    assert [jar.file_name for jar in jars.locked(lock)] == ["one-1.0.jar", "one-1.0-test.jar"]


def test_a_java_of_the_wrong_version_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch(mode=0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="25.0.1"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert read_feature_version(tmp_path) == 25
    assert find_java_home() != tmp_path
    assert read_feature_version(find_java_home()) in SUPPORTED_JAVA_VERSIONS
    (tmp_path / "release").write_text('JAVA_VERSION="17.0.2"\n')
    assert find_java_home() == tmp_path
