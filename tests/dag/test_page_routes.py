"""The DR page's routes in Airflow's own application, over two real clusters; no Airflow runs, and no browser."""

from __future__ import annotations

import html
import json
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from mirror_core.model.names import ClusterName
from mirror_core.model.run import RunMode
from mirror_core.model.timing import now_ms
from mirror_core.page.snapshots import ClusterSnapshots
from tests.dag.airflow_home import add_connection, connection_of
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, produce
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.page_sessions import signed_in
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
    from fastapi.testclient import TestClient
    from httpx import Response

pytestmark = [pytest.mark.dag, pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]

FAILOVER = "mirror_failover"
RUN = f"/dags/{FAILOVER}/dagRuns/r1"


@dataclass(frozen=True)
class Site:
    """The page, and what it shows."""

    client: TestClient
    mirrored: Mirrored
    topic: str
    run: str

    def get(self, path: str, role: str | None = "viewer") -> Response:
        """`role`: of the user; None: signed in, and without a role."""
        answer: Response = self.client.get(f"/mirrorbook{path}", headers=signed_in(role))
        return answer

    def body(self, path: str, role: str = "viewer") -> str:
        """What the open page is given."""
        answer = self.get(f"/api{path}", role)
        assert answer.status_code == 200
        return html.unescape(answer.json()["html"])


def not_found(site: Site, path: str) -> str:
    """What is said of it, once it is not found."""
    answer = site.get(path)
    return answer.text if answer.status_code == 404 else ""


@pytest.fixture(scope="module")
def api_server() -> Iterator[None]:
    """What Airflow's API server says it is: where connections and Variables are looked up depends on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
        yield


@pytest.fixture(scope="module")
def site(pair: Pair, airflow_database: None, api_server: None) -> Iterator[Site]:
    """A mirror, and a failover of it that was given up when it had proved both sides to be equal."""
    from airflow.api_fastapi.app import create_app, purge_cached_app
    from airflow.models.variable import Variable
    from fastapi.testclient import TestClient
    from mirrorbook_airflow.hooks import get_home_folder

    for cluster in (pair.east, pair.west):
        add_connection(cluster.name, connection_of(cluster))
    Variable.set("mirrorbook_clusters", "east,west")
    topic = new_topic(pair.east)
    produce(pair.east, topic, 50)
    mirrored = new_mirror(pair, get_home_folder("evidence"), topic)
    mirrored.copy()
    engine = mirrored.failover
    run = engine.begin(engine.plan(RunMode.PLANNED).hash, approved_by="ann").id
    engine.run_steps(run, ["prove"])
    engine.abort(run)
    with TestClient(create_app(apps="core"), follow_redirects=False) as client:
        found = Site(client, mirrored, topic, run)
        wait_until(lambda: mirrored.name in found.body("/mirrors"), timeout_s=TIMEOUT_S, why="it was looked at")
        yield found
    purge_cached_app()


def test_every_page_and_its_data_are_served(site: Site) -> None:
    from mirror_core.page.routes import HEADERS, REPORT_HEADERS

    name = site.mirrored.name
    pages = ("/", f"/mirrors/{name}", f"/mirrors/{name}?page=7", f"/mirrors/{name}/runbook", f"/runs/{site.run}/files")
    data = ("/api/mirrors", f"/api/mirrors/{name}", f"/api/mirrors/{name}/runbook")
    static = ("/static/page.js", "/static/page.css")
    for path in (*pages, *data, *static):
        answer = site.get(path)
        assert answer.status_code == 200, path
        assert {key: answer.headers[key] for key in HEADERS} == HEADERS, path
    for path in pages:
        assert site.get(path).headers["content-type"].startswith("text/html")
    (path,) = re.findall(r'href="/mirrorbook(/runs/[^"]*/index.html)"', site.get(f"/runs/{site.run}/files").text)
    report = site.get(path)
    assert report.status_code == 200
    assert f"{site.topic}-0" in report.text
    assert {key: report.headers[key] for key in REPORT_HEADERS} == REPORT_HEADERS


def test_what_brokers_say_is_on_the_page(site: Site) -> None:
    name = site.mirrored.name

    def told() -> str | None:
        """Looks at a mirror and at what a plan is made from are made beside each other: either may end first."""
        body = site.body(f"/mirrors/{name}")
        return body if "READY" in body and re.search(r"behind: \d", body) else None

    body = wait_until(told, timeout_s=TIMEOUT_S, why="both sides were asked")
    assert body is not None
    assert re.search(rf'id="sum-{site.run}".*<span class="ABORTED">ABORTED</span>', body)
    whole = format_sentence("copy_progress_columns_pattern", site.topic)
    assert re.search(rf"behind: \d+\.\d s: ({whole})", body)
    assert f"mirrorbook mirror describe {name}" in site.body(f"/mirrors/{name}/runbook")


def record_question(
    mirror: str, *, answered: bool = False, ended: bool = False, task_mirror: str = "", operator: str = "ApprovePlan"
) -> str:
    """As a task that asks leaves it in Airflow's database. Returns the id of its DAG run. `task_mirror`: the run has no
    parameter, as that of a team's own DAG, and the task is about this mirror."""
    from airflow.models.dagrun import DagRun
    from airflow.models.hitl import HITLDetail
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.models.taskinstance import TaskInstance
    from airflow.sdk.timezone import utcnow
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType
    from sqlalchemy import insert
    from uuid6 import uuid7

    run, task = f"manual__{secrets.token_hex(4)}", uuid7()
    with create_session() as database:
        state = DagRunState.SUCCESS if ended else DagRunState.RUNNING
        kind, by = DagRunType.MANUAL, DagRunTriggeredByType.UI
        database.add(
            DagRun(
                *(FAILOVER, run),
                run_type=kind,
                state=state,
                run_after=utcnow(),
                triggered_by=by,
                conf={} if task_mirror else {"mirror": mirror},
            )
        )
        database.flush()
        database.execute(
            insert(TaskInstance.__table__).values(
                **{"id": task, "dag_id": FAILOVER, "run_id": run, "task_id": "approve", "map_index": -1},
                **{"pool": "default_pool", "pool_slots": 1, "operator": operator},
            )
        )
        if task_mirror:
            database.execute(
                insert(RenderedTaskInstanceFields.__table__).values(
                    **{"dag_id": FAILOVER, "run_id": run, "task_id": "approve", "map_index": -1},
                    rendered_fields={"mirror": task_mirror},
                )
            )
        answered_at = utcnow() if answered else None
        asks = {"options": ["Approve"], "subject": f"Fail over mirror {mirror}?", "params": {}, "params_input": {}}
        database.add(HITLDetail(ti_id=task, responded_at=answered_at, **asks))
    return run


def test_a_question_that_waits_is_on_its_mirrors_page_only_until_it_is_answered(site: Site) -> None:
    name = site.mirrored.name
    record_question("another"), record_question(name, answered=True), record_question(name, ended=True)
    assert "waits for your approval" not in site.body(f"/mirrors/{name}")
    run = record_question(name)
    (link,) = re.findall(r'<a id="answer-1" href="([^"]*)">', site.body(f"/mirrors/{name}"))
    assert link == f"/dags/{FAILOVER}/runs/{run}/required_actions?response_received=false"
    assert f"Fail over mirror {name}?" in site.body(f"/mirrors/{name}")


def test_a_question_of_any_dag_about_a_mirror_or_its_way_home_is_on_its_page(site: Site) -> None:
    def runs() -> set[str]:
        return set(re.findall(r'<a id="answer-[0-9]+" href="/dags/[^/]*/runs/([^/]*)/', site.body(f"/mirrors/{name}")))

    name = site.mirrored.name
    before = runs()
    record_question("", task_mirror="another"), record_question("", task_mirror=name, operator="HITLOperator")
    assert runs() == before
    asked = {record_question("", task_mirror=about) for about in (name, f"{name}-back")}
    assert runs() == before | asked


def test_a_viewer_sees_and_cannot_act(site: Site) -> None:
    name = site.mirrored.name
    assert 'class="button" href' not in site.body(f"/mirrors/{name}")
    for path in ("/", f"/mirrors/{name}", f"/api/mirrors/{name}", f"/runs/{site.run}/files"):
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            answer = site.client.request(method, f"/mirrorbook{path}", headers=signed_in("viewer"))
            assert answer.status_code == 405, (method, path)
    run = {"logical_date": None, "conf": {"mirror": name}}
    answer = site.client.post(f"/api/v2/dags/{FAILOVER}/dagRuns", json=run, headers=signed_in("viewer"))
    assert answer.status_code == 403


@pytest.mark.parametrize("role", ["viewer", None])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", f"{RUN}/taskInstances/approve/-1/hitlDetails", {"chosen_options": ["Approve"], "params_input": {}}),
        ("PATCH", f"{RUN}/taskInstances/go_ahead/-1/hitlDetails", {"chosen_options": ["Approve"], "params_input": {}}),
        ("PATCH", f"{RUN}/taskInstances/cut_over", {"new_state": "success"}),
        ("PATCH", RUN, {"state": "success"}),
        ("POST", f"/dags/{FAILOVER}/clearTaskInstances", {"dry_run": False, "task_ids": ["cut_over"]}),
        ("PATCH", f"/dags/{FAILOVER}", {"is_paused": True}),
        ("POST", "/variables", {"key": "mirrorbook_clusters", "value": "elsewhere"}),
        ("POST", "/connections", {"connection_id": "mirrorbook_east", "conn_type": "mirrorbook"}),
        ("DELETE", "/variables/mirrorbook_clusters", None),
    ],
)
def test_nobody_approves_clears_or_marks_who_may_only_see(
    site: Site, role: str | None, method: str, path: str, body: dict[str, object] | None
) -> None:
    answer = site.client.request(method, f"/api/v2{path}", json=body, headers=signed_in(role))
    assert answer.status_code == 403, answer.text


@pytest.mark.parametrize("path", ["/connections", "/connections/east", "/config", "/variables/mirrorbook_clusters"])
def test_who_may_start_dags_reads_no_password_and_no_settings(site: Site, path: str) -> None:
    answer = site.client.get(f"/api/v2{path}", headers=signed_in("user"))
    assert answer.status_code == 403, answer.text


def grant_by_dag(monkeypatch: pytest.MonkeyPatch, *granted: str) -> None:
    """Users have rights on these DAGs only."""
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    def is_authorized(self: object, *, details: DagDetails | None = None, **_: object) -> bool:
        return details is not None and details.id in granted

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", is_authorized)


def record_dags(*dags: str) -> None:
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    with create_session() as database:
        database.merge(DagBundleModel(name="ours"))
        database.flush()
        for dag in dags:
            database.merge(DagModel(dag_id=dag, bundle_name="ours", is_stale=False))


def test_who_may_see_another_dag_only_gets_no_page(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    grant_by_dag(monkeypatch, "somebody_elses")
    name = site.mirrored.name
    for path in ("/", f"/mirrors/{name}", f"/mirrors/{name}/runbook", f"/runs/{site.run}/files", "/api/mirrors"):
        answer = site.get(path, role="user")
        assert answer.status_code == 403, path
        assert name not in answer.text


def test_a_user_with_rights_on_the_dags_of_one_mirror_sees_and_moves_that_one_and_no_other(
    site: Site, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mirrorbook_airflow.hooks import get_home_folder

    topic = new_topic(pair.east)
    own, other = new_mirror(pair, get_home_folder("evidence"), topic).name, site.mirrored.name
    dag, sets = f"{FAILOVER}.{own}", get_home_folder("config").parent / "mirrors.yaml"
    members = {"mine": [str(own)], "mixed": [str(own), str(other)]}
    sets.write_text(json.dumps({"sets": {name: {"mirrors": names} for name, names in members.items()}}))
    record_dags(dag, FAILOVER)
    try:
        wait_until(lambda: str(own) in site.body("/mirrors", "admin"), timeout_s=TIMEOUT_S, why="it was looked at")
        wait_until(lambda: ">mixed<" in site.body("/mirrors", "admin"), timeout_s=TIMEOUT_S, why="sets were read")
        grant_by_dag(monkeypatch, dag)
        listed = site.body("/mirrors", "user")
        assert f'/mirrors/{own}"' in listed
        assert ">mine<" in listed
        assert str(other) not in listed
        assert ">mixed<" not in listed, "a set is for whoever may see all of its mirrors"
        assert f'href="/dags/{dag}"' in site.body(f"/mirrors/{own}", "user")
        assert site.get(f"/mirrors/{own}/runbook", "user").status_code == 200
        unknown = site.get("/mirrors/no-such", "user")
        for path in (f"/mirrors/{other}", f"/mirrors/{other}/runbook", f"/mirrors/{other}/reports/check-1/index.html"):
            for shown in (path, f"/api{path}") if "reports" not in path else (path,):
                answer = site.get(shown, "user")
                assert answer.status_code == 403, shown
                assert str(other) not in answer.text
        assert site.get(f"/mirrors/{other}", "user").text == unknown.text, "nobody learns which other mirrors exist"
        for path in (f"/runs/{site.run}/files", f"/runs/{site.run}/files/index.html"):
            assert site.get(path, "user").status_code == 404, path
        grant_by_dag(monkeypatch, FAILOVER)
        listed = site.body("/mirrors", "user")
        assert str(other) in listed, "it has no DAG of its own"
        assert str(own) not in listed
        assert site.get(f"/mirrors/{own}", "user").status_code == 403
        assert site.get(f"/runs/{site.run}/files", "user").status_code == 200
    finally:
        sets.unlink()


HOSTILE_PARTS: Final = (
    "..%2F..%2F..%2Fetc%2Fpasswd",
    "%2e%2e",
    "%00",
    "a%00.html",
    "%3Cscript%3Ealert(1)%3C%2Fscript%3E",
    "%22%20onload%3D%22alert(1)",
    "%0d%0aSet-Cookie:%20a=b",
    "a" * 20_000,
    "%ff%fe",
    "report.html%3F",
)


@pytest.mark.parametrize("part", HOSTILE_PARTS, ids=range(len(HOSTILE_PARTS)))
def test_no_path_or_query_is_an_error_or_comes_back_as_markup(site: Site, part: str) -> None:
    name = site.mirrored.name
    paths = (
        f"/mirrors/{part}",
        f"/mirrors/{part}/runbook",
        f"/api/mirrors/{part}",
        f"/api/mirrors/{part}/runbook",
        f"/runs/{part}/files",
        f"/runs/{site.run}/files/{part}",
        f"/mirrors/{name}/reports/{part}/index.html",
        f"/mirrors/{name}/reports/parity-20260101T000000Z/{part}",
        f"/sets/{part}/report",
        f"/sets/run-{part}/{part}",
        f"/static/{part}",
        f"/mirrors/{name}?page={part}",
        f"/{part}",
    )
    for path in paths:
        answer = site.client.get(
            f"/mirrorbook{path}", headers={**signed_in("viewer"), "Origin": "https://evil.example"}
        )
        assert answer.status_code < 500 or answer.status_code == 503, (path[:200], answer.status_code)
        assert "<script>alert" not in answer.text, path[:200]
        assert '" onload="' not in answer.text, path[:200]
        assert "root:" not in answer.text, path[:200]
        assert "set-cookie" not in answer.headers, path[:200]
        assert "access-control-allow-origin" not in answer.headers, path[:200]
        location = answer.headers.get("location", "/")
        assert location.startswith("/"), path[:200]
        assert not location.startswith("//"), path[:200]


def test_whoever_has_no_role_sees_nothing(site: Site) -> None:
    name = site.mirrored.name
    for path in ("/", f"/mirrors/{name}", f"/api/mirrors/{name}", f"/runs/{site.run}/files/report.html"):
        answer = site.get(path, role=None)
        assert answer.status_code == 403, path
        assert name not in answer.text


def test_whoever_is_not_signed_in_is_led_to_the_login(site: Site) -> None:
    answer = site.client.get(f"/mirrorbook/mirrors/{site.mirrored.name}")
    assert (answer.status_code, answer.text) == (303, "")
    assert answer.headers["location"].startswith("/api/v2/auth/login?next=")
    assert site.client.get("/mirrorbook/api/mirrors").status_code == 401


def test_what_no_cluster_knows_is_not_found_and_says_so(site: Site) -> None:
    for path in ("/mirrors/no-such", "/mirrors/no-such/runbook"):
        # A look at the clusters may take longer than a page waits for: until then nobody knows.
        said = wait_until(partial(not_found, site, path), timeout_s=TIMEOUT_S, why=f"{path} is not found")
        assert format_sentence("no_cluster_that_answers_knows") in said
        assert f'data-from="/mirrorbook/api{path}' in said, "it may be made a moment later"
    assert "No cluster that answers knows a mirror no-such" in site.body("/mirrors/no-such"), "the page was open before"
    for path in ("/runs/no-such/files", "/runs/no-such/files/report.html"):
        said = wait_until(partial(not_found, site, path), timeout_s=TIMEOUT_S, why=f"{path} is not found")
        assert "no cluster that answers knows such a run" in said
    assert site.get(f"/runs/{site.run}/files/no-such.html").status_code == 404


def test_what_a_silent_cluster_may_know_or_an_old_look_does_not_is_not_called_unknown(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mirrorbook_airflow.page import routes

    silent = ClusterSnapshots(now_ms(), {}, {ClusterName("west"): "no answer within 4.0 s"})
    for known in (
        silent,
        ClusterSnapshots(now_ms() - 60_000, {}, {}),
        ClusterSnapshots(now_ms(), {}, {}, "no Variable"),
        None,
    ):
        monkeypatch.setattr(routes.pages.poller, "get_clusters", lambda found=known: found)
        assert site.get("/mirrors/new").status_code == 200
        assert site.get("/mirrors/new/runbook").status_code == 200
        assert site.get("/runs/new/files").status_code == (404 if known and known.at_ms > now_ms() - 9_000 else 503)


@pytest.mark.parametrize("path", ["..%2F..%2Fconfig%2Fdr-page.yaml", "%2Fetc%2Fpasswd", "..%2F..%2F..%2Fairflow.cfg"])
def test_nothing_but_reports_is_served(site: Site, path: str) -> None:
    assert site.get(f"/runs/{site.run}/files/{path}").status_code == 404


def test_a_hostile_name_stays_text(site: Site) -> None:
    name = f"<script>{secrets.token_hex(4)}"
    assert name not in site.get(f"/mirrors/{name.replace('<', '%3C').replace('>', '%3E')}").text
