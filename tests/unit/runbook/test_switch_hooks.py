"""Hooks: how they are configured, what an answer means, and how they are called, retried and remembered."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
import yaml

from mirror_core.kafka.config import load_config
from mirror_core.model.errors import BadRequest, LostOwnership
from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.hooks import (
    Hook,
    HookCommand,
    HookOutcome,
    compute_retry_pause_s,
    from_exit_code,
    from_http_status,
)
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import ClusterName, MirrorName, get_base_name
from mirror_core.model.run import RunMode, StepEvidence
from mirror_core.model.timing import SCALE_VARIABLE
from mirror_core.runbook.hook_calls import await_health, warn_unusable_hooks
from mirror_core.runbook.step_records import HookCall, HookCalls
from mirror_core.runbook.switch import SWITCH_STEP, hook_arguments, run_hooks
from mirror_core.state.active_cluster import ActiveCluster, FenceLift
from mirror_core.state.journal import Journal
from mirror_core.state.mirror_link import MirrorLink, make_mirror_link
from mirror_core.state.state_records import StateRecord, Tombstone
from mirror_core.sync.subprocess_hook import INHERITED_VARIABLES
from tests.support.checked_threads import beside
from tests.support.memory_state import MemoryLog, journal_of
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

SECRET = "hush-hush-4711"
EAST = {"east": {"bootstrap.servers": "east:9092"}}
ACTIVE = ActiveCluster(
    mirror=MirrorName("orders"),
    active=ClusterName("west"),
    cluster_id="west-id",
    bootstrap_servers="west:9092",
    since_ms=7,
    run="r",
    generation=3,
)


def configured(folder: Path, *hooks: object, mirror: str = "orders") -> MirrorLink:
    """A mirror with these hooks in its mirrorbook.yaml."""
    path = folder / "mirrorbook.yaml"
    clusters = {cluster: {"bootstrap.servers": f"{cluster}:9092"} for cluster in ("east", "west")}
    path.write_text(yaml.safe_dump({"clusters": clusters, "mirrors": {"orders": {"switch": list(hooks)}}}))
    return make_mirror_link(
        load_config(path),
        Mirror(
            name=MirrorName(mirror),
            source=ClusterName("east"),
            destination=ClusterName("west"),
            source_id="east-id",
            destination_id="west-id",
            topics=("orders",),
            exclude_topics=(),
            groups=(),
            producer_id=1 << 62,
            desired=DesiredState.STARTED,
            created_ms=1,
        ),
    )


def journal() -> Journal:
    return journal_of("r", SWITCH_STEP)


def called(link: MirrorLink, by: Journal | None = None, *, pauses: list[float] | None = None) -> list[HookCall]:
    paused = [] if pauses is None else pauses
    return list(run_hooks(link, ACTIVE, by or journal(), pause=paused.append))


def script(folder: Path, body: str) -> str:
    path = folder / "hook.sh"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


@dataclass
class Server:
    """Answers with these statuses, the last one again and again; keeps what it was sent."""

    statuses: list[int]
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""
    hang: threading.Event | None = None


@contextmanager
def serving(*statuses: int, hang: threading.Event | None = None) -> Iterator[Server]:
    told = Server(list(statuses), hang=hang)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told.got.append((self.path, dict(self.headers), body))
            if told.hang is not None:
                told.hang.wait(30)
            self.send_response(told.statuses.pop(0) if len(told.statuses) > 1 else told.statuses[0])
            self.send_header("Location", f"{told.url}/elsewhere")
            self.end_headers()
            self.wfile.write(SECRET.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.url = f"http://127.0.0.1:{server.server_address[1]}"

    def stop() -> None:
        if hang is not None:
            hang.set()
        server.shutdown()

    try:
        with beside(server.serve_forever, stop):
            yield told
    finally:
        server.server_close()


# -- configured ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        ({"command": ["x"]}, r"switch\[0\]: needs a name"),
        ({"name": "a"}, "needs either command or http"),
        ({"name": "a", "command": ["x"], "http": {"url": "http://h"}}, "needs either"),
        ({"name": "a", "command": "rm -rf /"}, "there is no shell"),
        ({"name": "a", "command": []}, "there is no shell"),
        ({"name": "a", "http": {"url": "file:///etc/passwd"}}, "must be http"),
        ({"name": "a", "http": {"url": "http://h", "method": "GET"}}, "POST, PUT or PATCH"),
        ({"name": "a", "http": {"url": "http://h", "headers": {"n": 1}}}, "names to text"),
        ({"name": "a", "http": {"url": "http://h", "verify": False}}, "unknown 'verify'"),
        ({"name": "a", "airflow": "asset"}, "unknown 'airflow'; known are command, environment, http"),
        ({"name": "a", "command": ["x"], "timeout": 3}, "unknown 'timeout'"),
        ({"name": "a", "http": {"url": "http://h"}, "environment": {"A": "b"}}, "environment: only for a command"),
        ({"name": "a", "command": ["x"], "environment": ["A"]}, r"switch\[0\].environment: must be a mapping"),
        ({"name": "a", "command": ["x"], "environment": {"A": 1}}, "environment.A: must be text"),
        ({"name": "a", "command": ["x"], "environment": {"A=B": "c"}}, "'A=B' is no name of a variable"),
        ({"name": "a", "command": ["x"], "environment": {"MIRRORBOOK_ACTIVE": "east"}}, "Mirrorbook sets it itself"),
        ({"name": "a", "command": ["x"], "timeout_s": 0}, "number from 0.1 to 600"),
        ({"name": "a", "command": ["x"], "retries": True}, "number from 0 to 20"),
    ],
)
def test_a_wrong_hook_is_refused_where_it_stands(tmp_path: Path, hook: object, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        configured(tmp_path, hook)


def test_two_hooks_of_one_name_could_not_be_told_apart(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="more than one hook is named 'a'"):
        configured(tmp_path, *[{"name": "a", "command": ["x"]}] * 2)


def test_the_way_home_has_the_hooks_of_its_mirror(tmp_path: Path) -> None:
    link = configured(tmp_path, {"name": "a", "command": ["x"]}, mirror="orders-back")
    assert [hook.name for hook in link.config.hooks(link.mirror.name)] == ["a"]
    assert not link.config.hooks(MirrorName("payments"))
    assert get_base_name(link.mirror.name) == "orders"


def test_what_a_plan_shows_of_a_hook_holds_nothing_that_may_be_secret(tmp_path: Path) -> None:
    http = {"url": f"https://user:{SECRET}@gw/{SECRET}?t={SECRET}", "headers": {"X": SECRET}, "json": {"k": SECRET}}
    command = {"name": "c", "command": ["dns", SECRET], "timeout_s": 5, "retries": 1}
    link = configured(tmp_path, {"name": "h", "http": http}, command)
    hooks = link.config.hooks(link.mirror.name)
    assert [hook.description for hook in hooks] == [
        "HTTP POST to gw, at most 4 times, 30 s each",
        "command dns, at most 2 times, 5 s each",
    ]
    assert SECRET not in repr(hooks)


def test_a_plan_warns_of_hooks_that_cannot_be_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_TOKEN", raising=False)
    headers = {"Authorization": "Bearer ${env:NO_TOKEN}"}
    link = configured(
        tmp_path,
        {"name": "gone", "command": ["./gone.sh"]},
        {"name": "there", "command": [script(tmp_path, "true")]},
        {"name": "gw", "http": {"url": "http://gw", "headers": headers}},
    )
    absent, unresolved = warn_unusable_hooks(link.config, link.mirror.name)
    assert absent == Finding("hook_program_absent", "gone", program="./gone.sh")
    assert (unresolved.code, unresolved.subject) == ("hook_unresolved", "gw")
    assert "environment variable NO_TOKEN is not set" in str(unresolved.values["reason"])
    monkeypatch.setenv("NO_TOKEN", SECRET)
    assert len(list(warn_unusable_hooks(link.config, link.mirror.name))) == 1


# -- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        *((code, HookOutcome.DONE) for code in (200, 201, 204)),
        *((code, HookOutcome.RETRY) for code in (408, 425, 429, 500, 503)),
        *((code, HookOutcome.GIVE_UP) for code in (301, 302, 307, 400, 401, 403, 404)),
    ],
)
def test_what_a_status_means(code: int, answer: HookOutcome) -> None:
    assert from_http_status(code) is answer


def test_what_an_exit_code_means_and_how_long_is_waited() -> None:
    assert [from_exit_code(code) for code in (0, 1, -9)] == [HookOutcome.DONE, HookOutcome.RETRY, HookOutcome.RETRY]
    assert [compute_retry_pause_s(tries) for tries in (1, 2, 3, 6, 60)] == [1, 2, 4, 30, 30]


# -- called ----------------------------------------------------------------------------------------------------------


def test_a_command_is_told_what_has_changed_and_no_shell_reads_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SCALE_VARIABLE, raising=False)
    monkeypatch.delenv("MIRRORBOOK_EXPLORE", raising=False)
    told = tmp_path / "told"
    command = script(tmp_path, f'printf "%s|" "$@" > {told}; env | grep ^MIRRORBOOK_ | sort >> {told}')
    (call,) = called(configured(tmp_path, {"name": "dns", "command": [command, "$HOME; x", "*"]}))
    assert (call.ended, call.problem, call.tries) == (True, "", 1)
    arguments, variables = told.read_text().rsplit("|", 1)
    assert arguments == "$HOME; x|*"
    assert dict(line.split("=", 1) for line in variables.split()) == {
        f"MIRRORBOOK_{name.upper()}": str(value) for name, value in hook_arguments(ACTIVE, RunMode.PLANNED).items()
    }
    assert "MIRRORBOOK_BOOTSTRAP_SERVERS=west:9092" in variables


def test_a_command_gets_a_listed_environment_and_what_its_hook_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EAST_PASSWORD", "AIRFLOW__CORE__FERNET_KEY", "AWS_SECRET_ACCESS_KEY", "CREDENTIALS_DIRECTORY"):
        monkeypatch.setenv(name, SECRET)
    for name in INHERITED_VARIABLES:
        monkeypatch.setenv(name, os.environ.get(name, "C"))
    monkeypatch.setenv("GATEWAY_TOKEN", "token-1")
    (tmp_path / "dns.properties").write_text("key=token-2\n")
    told = tmp_path / "told"
    environment = {"DNS_TOKEN": "${env:GATEWAY_TOKEN}", "DNS_KEY": "${file:dns.properties:key}", "ZONE": "a b=c"}
    hook = {"name": "dns", "command": [script(tmp_path, f"env > {told}")], "environment": environment}
    link = configured(tmp_path, hook)
    (call,) = called(link)
    assert call.problem == ""
    variables = dict(line.split("=", 1) for line in told.read_text().splitlines())
    assert SECRET not in told.read_text()
    assert variables["DNS_TOKEN"] == "token-1"
    assert variables["DNS_KEY"] == "token-2"
    assert variables["ZONE"] == "a b=c"
    own = {name for name in variables if name.startswith("MIRRORBOOK_")}
    set_by_the_shell = {"PWD", "OLDPWD", "SHLVL", "_"}
    assert variables.keys() - own - set_by_the_shell == {*INHERITED_VARIABLES, *environment}
    assert all(variables[name] == os.environ[name] for name in INHERITED_VARIABLES)
    assert "token" not in repr(link.config.hooks(link.mirror.name)).lower()


def test_the_variables_that_a_command_inherits_are_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operate" / "moving-applications.md").read_text(encoding="utf-8")
    (passage,) = re.findall(r"a command inherits (.*?) only\.", page, re.DOTALL)
    assert tuple(re.findall(r"`(\w+)`", passage)) == INHERITED_VARIABLES


def test_what_readers_of_the_active_topic_learn_is_documented() -> None:
    """Each field, and that it is of all mirrors: nobody's rights on topics narrow it."""
    page = (Path(__file__).parents[3] / "docs" / "operate" / "moving-applications.md").read_text(encoding="utf-8")
    section = page.split("## Follow a topic")[1].split("```python")[0]
    value = section.split("Value: JSON with ")[1].split(". No record")[0]
    fields = {field.name for part in (ActiveCluster, FenceLift) for field in dataclasses.fields(part)}
    fields -= {"mirror"}  # the key
    assert {*re.findall(r"`(\w+)`", value)} == fields
    assert "sees that of **all** mirrors of both clusters, whichever topics they may read" in section


def test_a_hooks_environment_that_cannot_be_resolved_is_planned_for_and_calls_nothing(tmp_path: Path) -> None:
    environment = {"DNS_TOKEN": "${env:NO_TOKEN}"}
    hook = {"name": "dns", "command": [script(tmp_path, "touch called")], "environment": environment}
    link = configured(tmp_path, hook)
    (warning,) = warn_unusable_hooks(link.config, link.mirror.name)
    assert warning == Finding(
        "hook_unresolved", "dns", reason="environment.DNS_TOKEN: environment variable NO_TOKEN is not set"
    )
    (call,) = called(link)
    assert (call.tries, call.problem) == (1, "environment.DNS_TOKEN: environment variable NO_TOKEN is not set")
    assert not (tmp_path / "called").exists()


def test_a_request_has_the_body_and_headers_and_its_secrets_reach_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    with serving(503, 429, 200) as server:
        http = {
            "url": server.url + "/switch?t=${env:TOKEN}",
            "headers": {"Authorization": "Bearer ${env:TOKEN}"},
            "json": {"team": "payments", "deep": ["${env:TOKEN}"], "active": "forged"},
        }
        pauses: list[float] = []
        by = journal()
        with caplog.at_level("DEBUG"):
            (call,) = called(configured(tmp_path, {"name": "gw", "http": http}), by, pauses=pauses)
    assert (call.problem, call.tries, pauses) == ("", 3, [1, 2])
    path, headers, body = server.got[-1]
    assert path == f"/switch?t={SECRET}"
    assert headers["Authorization"] == f"Bearer {SECRET}"
    assert headers["Content-Type"] == "application/json"
    sent = msgspec.json.decode(body)
    assert sent == {"team": "payments", "deep": [SECRET], **hook_arguments(ACTIVE, RunMode.PLANNED)}
    kept = by.load_checkpoint_json(SWITCH_STEP, HookCalls)
    assert kept is not None
    assert SECRET not in kept + caplog.text


def test_a_redirection_is_not_followed(tmp_path: Path) -> None:
    with serving(302) as server:
        (call,) = called(configured(tmp_path, {"name": "gw", "http": {"url": server.url}}))
    assert (call.problem, call.tries, len(server.got)) == ("answered with status 302", 1, 1)


def test_a_hook_that_always_fails_is_given_up_and_the_next_one_is_called(tmp_path: Path) -> None:
    fails = {"name": "dns", "command": ["/bin/sh", "-c", f"echo {SECRET}; echo {SECRET} >&2; exit 3"], "retries": 2}
    pauses: list[float] = []
    by = journal()
    calls = called(configured(tmp_path, fails, {"name": "next", "command": ["true"]}), by, pauses=pauses)
    assert [(c.hook, c.tries, c.problem) for c in calls] == [("dns", 3, "exit code 3"), ("next", 1, "")]
    assert pauses == [1, 2]
    assert SECRET not in str(by.load_checkpoint_json(SWITCH_STEP, HookCalls))


def test_what_cannot_be_started_or_reached_is_said(tmp_path: Path) -> None:
    gone = {"name": "gone", "command": [str(tmp_path / "gone")]}
    refused = {"name": "gw", "http": {"url": "http://127.0.0.1:1"}, "retries": 1}
    calls = called(configured(tmp_path, gone, refused))
    assert [(c.tries, c.problem) for c in calls] == [
        (1, "cannot be started: No such file or directory"),
        (2, "no connection: Connection refused"),
    ]


def test_a_header_that_cannot_be_sent_is_not_shown(tmp_path: Path) -> None:
    http = {"url": "http://127.0.0.1:1", "headers": {"X": f"{SECRET}\n{SECRET}"}}
    (call,) = called(configured(tmp_path, {"name": "gw", "http": http}))
    assert (call.problem, call.tries) == ("cannot be sent: ValueError", 1)


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_command_that_may_not_be_killed_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = tmp_path / "pid"

    def denied(group: int, sign: int) -> None:
        raise PermissionError("as of a program that has become root by sudo")

    monkeypatch.setattr(os, "killpg", denied)
    command = ["/bin/sh", "-c", f"echo $$ > {pid}; exec sleep 300"]
    hook = {"name": "h", "command": command, "timeout_s": 3, "retries": 3}
    try:
        (call,) = called(configured(tmp_path, hook))
    finally:
        wait_until(lambda: pid.exists() and pid.read_text(), timeout_s=20, why="the command says who it is")
        os.kill(int(pid.read_text()), signal.SIGKILL)
    assert call.problem == format_sentence("hook_could_not_be_killed", 3)
    assert call.tries == 1, "a second one beside the first"


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    hook = {"name": "h", "command": ["/bin/sh", "-c", f"sleep 300 & echo $! > {pid}; wait"], "timeout_s": 3}
    started = time.monotonic()
    (call,) = called(configured(tmp_path, {**hook, "retries": 0}))
    assert time.monotonic() - started < 20
    assert call.problem == "not ended within 3 s, and killed"
    child = int(pid.read_text())

    def gone() -> bool:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return True
        return "zombie" in Path(f"/proc/{child}/status").read_text()

    wait_until(gone, timeout_s=20, why="the child is gone, too")


def asked_for_health(folder: Path, script: str, timeout_s: float) -> StepEvidence:
    link, pauses = configured(folder), list[float]()
    command = HookCommand(("/bin/sh", "-c", script))
    hook = Hook(name="health", call=command, timeout_s=timeout_s)
    return await_health(link.config, hook, {"MIRRORBOOK_ACTIVE": "west"}, pause=pauses.append)


def test_a_health_command_is_called_until_the_application_is_well(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    script = f'echo "$MIRRORBOOK_ACTIVE" >> {calls}; test "$(wc -l < {calls})" -ge 3'
    evidence = asked_for_health(tmp_path, script, 60)
    assert (evidence[FigureKey.HEALTH_WELL], evidence[FigureKey.HEALTH_CALLS]) == (True, 3)
    assert FigureKey.HEALTH_PROBLEM not in evidence
    assert calls.read_text().split() == ["west"] * 3


@pytest.mark.parametrize(("script", "problem"), [("exit 7", "exit code 7"), ("sleep 600", "not ended within")])
def test_an_application_that_stays_ill_is_named_and_ends_nothing(tmp_path: Path, script: str, problem: str) -> None:
    evidence = asked_for_health(tmp_path, script, 1.5)
    assert evidence[FigureKey.HEALTH_WELL] is False
    assert problem in str(evidence[FigureKey.HEALTH_PROBLEM])


def test_a_health_command_that_cannot_be_started_is_called_once(tmp_path: Path) -> None:
    hook = Hook(name="health", call=HookCommand(("/no/such/program",)), timeout_s=60)
    evidence = await_health(configured(tmp_path).config, hook, {})
    assert (evidence[FigureKey.HEALTH_WELL], evidence[FigureKey.HEALTH_CALLS]) == (False, 1)


def test_the_way_home_has_the_health_command_and_a_plan_warns_of_a_missing_program(tmp_path: Path) -> None:
    path = tmp_path / "mirrorbook.yaml"
    section = {"health": {"command": ["/no/such/program"], "timeout_s": 90}}
    path.write_text(yaml.safe_dump({"clusters": EAST, "mirrors": {"orders": section}}))
    config = load_config(path)
    for name in ("orders", "orders-back"):
        hook = config.health_command(MirrorName(name))
        assert hook is not None
        assert hook.timeout_s == 90
        (found,) = warn_unusable_hooks(config, MirrorName(name))
        assert (found.code, found.subject) == ("hook_program_absent", "health")
    assert config.health_command(MirrorName("refunds")) is None


@pytest.mark.parametrize("wrong", [{"command": ["true"], "retries": 3}, {"timeout_s": 3}, ["true"]])
def test_a_wrong_health_command_is_refused_where_it_stands(tmp_path: Path, wrong: object) -> None:
    path = tmp_path / "mirrorbook.yaml"
    path.write_text(yaml.safe_dump({"clusters": EAST, "mirrors": {"orders": {"health": wrong}}}))
    with pytest.raises(BadRequest, match=r"mirrors\.orders\.health"):
        load_config(path)


def test_a_server_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    with serving(200, hang=threading.Event()) as server:
        hook = {"name": "gw", "http": {"url": server.url}, "timeout_s": 0.5, "retries": 1}
        (call,) = called(configured(tmp_path, hook))
    assert call.tries == 2
    assert call.problem in ("no answer within 0.5 s", "cannot be sent: TimeoutError")


def test_a_server_that_answers_drop_by_drop_is_not_waited_for(tmp_path: Path) -> None:
    over = threading.Event()

    def drip() -> None:
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not over.wait(0.1):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listening, beside(drip, over.set):
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        started = time.monotonic()
        (call,) = called(configured(tmp_path, {"name": "gw", "http": {"url": url}, "timeout_s": 1, "retries": 0}))
        took = time.monotonic() - started
    assert call.problem in ("no answer within 1 s", "cannot be sent: TimeoutError")
    assert took < 20


# -- remembered ------------------------------------------------------------------------------------------------------


class Fenced(MemoryLog):
    """Of a conductor that is replaced before its next write but so many."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.left = writes

    def put(self, *records: StateRecord | Tombstone) -> None:
        if self.left == 0:
            raise LostOwnership("another process has taken over")
        self.left -= 1
        super().put(*records)


def counting(folder: Path, *names: str) -> list[dict[str, object]]:
    return [{"name": n, "command": ["/bin/sh", "-c", f"echo {n} >> {folder / 'calls'}"]} for n in names]


@pytest.mark.parametrize(
    ("writes", "first", "all_in_all"),
    [
        (0, "", "a b"),  # replaced before the first call: it calls nobody
        (1, "a", "a a b"),  # killed while the first one was called: once more
        (2, "a", "a b"),  # killed between the two: the first is not called again
        (3, "a b", "a b b"),
    ],
)
def test_a_resumed_step_calls_no_hook_that_has_ended(tmp_path: Path, writes: int, first: str, all_in_all: str) -> None:
    link, said = configured(tmp_path, *counting(tmp_path, "a", "b")), tmp_path / "calls"
    said.touch()
    log = Fenced(writes)
    log.state = journal().log.state
    with pytest.raises(LostOwnership):
        called(link, Journal(log, "r", (SWITCH_STEP,)))
    assert said.read_text().split() == first.split()

    successor = MemoryLog()
    successor.state = log.state
    calls = called(link, Journal(successor, "r", (SWITCH_STEP,)))
    assert said.read_text().split() == all_in_all.split()
    assert [(c.ended, c.problem) for c in calls] == [(True, "")] * 2
