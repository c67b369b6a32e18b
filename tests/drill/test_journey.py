"""The whole story as one person lives it in a browser: connections, a mirror, two failovers, home again, a drill."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AclOperation, ResourceType

from demo.airflow import REPOSITORY, Airflow
from mirror_core.model.names import MirrorName
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.credentials import CONTROL, DATA
from tests.support.browser import browser, found_by_axe
from tests.support.dedicated_clusters import two_clusters
from tests.support.kafka_clients import Pair, grant, new_topic, produce, read_all
from tests.support.replicate_process import supervising
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.slow, pytest.mark.dag, pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]

DAGS: Final = (
    "mirror_create",
    "mirror_replicate",
    "mirror_failover",
    "mirror_failover_unplanned",
    "mirror_failback",
    "mirror_drill",
    "mirror_control",
    "mirror_sync",
)
NAME: Final = MirrorName("orders")
CHOSEN: Final = ("action",)
"""Fields that are lists."""
RUN_S: Final = 600.0
FINAL: Final = ("success", "failed")


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Pair]:
    """Two of its own: one of them dies on the way."""
    with two_clusters(tmp_path / "pair") as pair:
        yield pair


@pytest.fixture
def airflow(clusters: Pair, tmp_path: Path) -> Iterator[Airflow]:
    """One that knows nothing but the DAGs."""
    spark = {"AIRFLOW__MIRRORBOOK__EXECUTORS_CONFIG": str(clusters.config_path)}
    found = Airflow(tmp_path / "airflow", dags=REPOSITORY / "dags", settings=spark)
    found.start()
    try:
        found.wait_healthy()
        for dag in DAGS:
            found.unpause(dag)
        found.pause("mirror_sync")
        yield found
    finally:
        found.stop()


@dataclass
class Person:
    """Somebody before a screen."""

    airflow: Airflow
    page: Page
    pictures: Path
    taken: int = 0

    def connect(self, cluster: SandboxCluster) -> None:
        """A connection, by Airflow's form."""
        from playwright.sync_api import expect

        page, control, data = self.page, cluster.client_config(CONTROL), cluster.client_config(DATA)
        page.goto(f"{self.airflow.url}/connections")
        page.get_by_role("button", name="Add Connection").click()
        form = page.get_by_role("dialog")
        form.locator('[name="connection_id"]').fill(cluster.name)
        form.get_by_role("combobox").first.click()
        page.keyboard.type("Kafka cluster (Mirrorbook)")
        page.keyboard.press("Enter")
        form.locator('[name="host"]').fill(control["bootstrap.servers"])
        form.locator('[name="login"]').fill(control["sasl.username"])
        form.locator('[name="password"]').fill(control["sasl.password"])
        form.get_by_text("Extra Fields", exact=True).click()
        self._choose(form, "security_protocol", control["security.protocol"])
        self._choose(form, "sasl_mechanism", control["sasl.mechanism"])
        form.locator('[name="element_data_username"]').fill(data["sasl.username"])
        form.locator('[name="element_data_password"]').fill(data["sasl.password"])
        self.look("connection")
        form.get_by_role("button", name="Save").click()
        expect(form).to_be_hidden()

    def _choose(self, form: Locator, field: str, value: str) -> None:
        """One of a list."""
        form.locator(f'[name="element_{field}"]').locator("xpath=..").get_by_role("combobox").click()
        self.page.keyboard.type(value)
        self.page.keyboard.press("Enter")

    def trigger(self, dag: str, *, from_page: bool = False, **fields: str) -> str:
        """Fill in the form of a DAG; the run's id."""
        from playwright.sync_api import expect

        page, before = self.page, self._runs(dag)
        if from_page:
            self.open()
            page.locator(f"#act-{dag}").click()
            page.wait_for_url(f"{self.airflow.url}/dags/{dag}")
        else:
            page.goto(f"{self.airflow.url}/dags/{dag}")
        page.get_by_role("button", name=re.compile("^trigger", re.IGNORECASE)).first.click()
        form = page.get_by_role("dialog")
        for name, value in fields.items():
            if name in CHOSEN:
                self._choose(form, name, value)
            else:
                form.locator(f'[name="element_{name}"]').fill(value)
        self.look(f"form-{dag}")
        form.get_by_role("button", name=re.compile("^trigger", re.IGNORECASE)).last.click()
        expect(form).to_be_hidden()
        (run,) = wait_until(lambda: self._runs(dag) - before, timeout_s=60, why=f"a run of {dag}")
        return run

    def answer(self, dag: str, run: str, task: str, choice: str) -> None:
        """Read the question among the required actions, and press a button."""
        self.airflow.await_question(dag, run, task, RUN_S)
        subject, _ = self.airflow.question(dag, run, task)
        page = self.page
        page.goto(f"{self.airflow.url}/required_actions")
        # A plan that was rejected, and is made again, asks in the same words.
        page.get_by_role("row").filter(has_text=run).get_by_role("link", name=subject).first.click()
        button = page.get_by_role("button", name=choice, exact=True)
        button.wait_for()
        self.look(f"{dag}-{task}")
        button.click()
        wait_until(lambda: self.airflow.tasks(dag, run).get(task) in FINAL, timeout_s=RUN_S, why=f"{task} is answered")

    def ends(self, dag: str, run: str) -> str:
        """The run's final state."""
        wait_until(lambda: self.airflow.run_state(dag, run) in FINAL, timeout_s=RUN_S, why=f"{dag} has ended")
        return self.airflow.run_state(dag, run)

    def open(self) -> None:
        """The mirror on the DR page."""
        self.page.goto(f"{self.airflow.url}/mirrorbook/mirrors/{NAME}")

    def shows(self, part: str, words: str | re.Pattern[str]) -> None:
        from playwright.sync_api import expect

        expect(self.page.locator(part)).to_contain_text(words)

    def look(self, name: str, *, ours: bool = False) -> None:
        """Pictures as wide as a desk and as a telephone, by day and by night. Our own page is looked at by axe, too."""
        self.taken += 1
        for width in (1400, 390):
            for scheme in ("light", "dark"):
                self.page.set_viewport_size({"width": width, "height": 900})
                self.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
                self.page.screenshot(path=self.pictures / f"{self.taken:02}-{name}-{width}-{scheme}.png")
                if ours:
                    assert found_by_axe(self.page) == []
        self.page.set_viewport_size({"width": 1400, "height": 900})
        self.page.emulate_media(color_scheme="light")

    def leaves(self, pair: Pair, topic: str) -> None:
        """The planned failover, with a look at the clock while applications stand still."""
        run = self.trigger("mirror_failover", from_page=True, mirror=NAME)
        self.answer("mirror_failover", run, "approve", "Approve")
        self.airflow.await_question("mirror_failover", run, "go_ahead", RUN_S)
        writer = Producer(
            {**pair.east.client_config("admin"), "transactional.id": topic, "transaction.timeout.ms": 110_000}
        )
        writer.init_transactions(30)
        writer.begin_transaction()
        writer.produce(topic, b"never committed")
        writer.flush(30)
        # Until its transaction is over, the step `fence` waits.
        self.answer("mirror_failover", run, "go_ahead", "Approve")
        self.open()
        self.shows("#runs", re.compile(r"standstill [0-9.]+ s so far"))
        self.look("standstill", ours=True)
        writer.abort_transaction(30)
        assert self.ends("mirror_failover", run) == "success"
        self.reads_reports("planned", "report.html", "index.html")

    def reads_reports(self, name: str, *links: str) -> None:
        """The newest run's, by their links."""
        for name_of in links:
            self.open()  # anew: a page that looks again by itself closes what was unfolded
            self.shows("#runs", "DONE")
            self.page.locator("[id^=files-]").first.click()
            self.look(f"reports-{name}", ours=True)
            with self.page.expect_navigation():
                self.page.get_by_role("link", name=name_of, exact=name_of == "report.html").first.click()
            self.page.get_by_role("heading").first.wait_for()
            self.look(f"read-{name}")

    def _runs(self, dag: str) -> set[str]:
        return {str(run["dag_run_id"]) for run in self.airflow.call("GET", f"/dags/{dag}/dagRuns")["dag_runs"]}


def test_a_person_makes_a_mirror_leaves_a_cluster_comes_home_and_loses_it(
    clusters: Pair, airflow: Airflow, tmp_path: Path
) -> None:
    pictures = Path(os.environ.get("MIRRORBOOK_PICTURES", tmp_path))
    east, west = clusters.east, clusters.west
    topic = new_topic(east, partitions=2, prefix="orders-")
    produce(east, topic, 500)
    grant(east, "app", ResourceType.TOPIC, topic, [AclOperation.WRITE, AclOperation.READ])
    with ExitStack() as data_plane, browser(airflow, "admin", tmp_path) as page:
        me = Person(airflow, page, pictures)
        for cluster in (east, west):
            me.connect(cluster)
        run = me.trigger("mirror_create", mirror=NAME, source="east", destination="west", topics=topic)
        assert me.ends("mirror_create", run) == "success"
        me.open()
        me.shows("#plots", "Lag: unknown")
        data_plane.enter_context(supervising(clusters.config_path, NAME, tmp_path / "data-plane"))
        me.trigger("mirror_replicate", mirror=NAME)
        me.open()
        me.shows("#plots", "Lag: 0 offsets now")
        assert me.ends("mirror_control", me.trigger("mirror_control", mirror=NAME, action="pause")) == "success"
        me.open()
        me.shows("#facts", "not running")
        produce(east, topic, 3000)
        me.shows("#plots", re.compile(r"Lag: 3,0\d\d offsets now"))
        assert me.ends("mirror_control", me.trigger("mirror_control", mirror=NAME, action="resume")) == "success"
        me.open()
        me.shows("#plots", re.compile(r"Lag: 0 offsets now, between 0 and 3,0\d\d"))
        me.shows("#cards", "READY")
        assert read_all(west, topic) == read_all(east, topic)
        me.look("ready", ours=True)

        run = me.trigger("mirror_failover", from_page=True, mirror=NAME)
        me.answer("mirror_failover", run, "approve", "Reject")
        assert me.ends("mirror_failover", run) == "failed"
        me.look("rejected")
        produce(east, topic, 5, user="app")

        me.leaves(clusters, topic)
        produce(west, topic, 5, user="app")
        with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
            produce(east, topic, 1, user="app")

        run = me.trigger("mirror_failback", from_page=True, mirror=NAME)
        for task in ("approve", "home.approve", "home.go_ahead"):
            me.answer("mirror_failback", run, task, "Approve")
        assert me.ends("mirror_failback", run) == "success"
        produce(east, topic, 5, user="app")
        assert read_all(west, topic)[:3510] == read_all(east, topic)[:3510]
        me.open()
        me.shows("#cards", "READY")
        me.look("home", ours=True)

        run = me.trigger("mirror_drill", from_page=True)
        assert me.ends("mirror_drill", run) == "success"
        me.open()
        me.shows("#cards", "last drill: planned, 250 records equal, 0 offsets lost")
        me.look("drilled", ours=True)

        wait_until(lambda: read_all(west, topic) == read_all(east, topic), timeout_s=RUN_S, why="it has caught up")
        before = read_all(east, topic)
        east.kill()
        me.open()
        me.shows("#alarms", "east")
        me.shows("#cards", "ONLY WITHOUT THE SOURCE")
        me.look("east-is-dead", ours=True)
        run = me.trigger("mirror_failover_unplanned", from_page=True, mirror=NAME)
        me.answer("mirror_failover_unplanned", run, "approve", "Approve")
        assert me.ends("mirror_failover_unplanned", run) == "success"
        assert read_all(west, topic) == before
        produce(west, topic, 5, user="app")
        me.reads_reports("unplanned", "report.html")  # nothing could be compared
