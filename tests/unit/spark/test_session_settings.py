"""Which settings Spark is started with: the user's win, but for those that would make copies wrong."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark
import pytest
import typer
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext

from mirror_core.cli.command_options import parse_spark_conf
from mirror_core.cli.run_commands import CompareRunner, make_services
from mirror_core.model.errors import BadRequest, RemoteFault
from mirror_core.model.task_messages import ListenAddress
from mirror_core.runbook.run_services import Services
from mirror_core.spark.parity_job import SparkParity
from mirror_core.spark.runner import SparkFleet, get_listen_address
from mirror_core.spark.salvage_job import SparkSalvage
from mirror_core.spark.session import (
    _build_settings,
    find_spark_java_home,
    get_spark_context,
    list_java_versions,
)


def test_the_users_settings_win_and_errors_alone_are_logged() -> None:
    mine = {"spark.driver.memory": "2g", "spark.ui.enabled": "true", "spark.driver.extraJavaOptions": "-XX:+UseG1GC"}
    found = _build_settings("spark://far:7077", 4, mine)
    assert (found["spark.driver.memory"], found["spark.ui.enabled"], found["spark.cores.max"]) == ("2g", "true", "4")
    java = found["spark.driver.extraJavaOptions"]
    assert java.startswith("-XX:+UseG1GC -Dlog4j2.configurationFile=")
    assert "Serial" not in java  # a JVM with two collectors does not start
    own = "-Dlog4j2.configurationFile=/etc/log4j2.properties"
    assert (
        _build_settings("local[2]", None, {"spark.driver.extraJavaOptions": own})["spark.driver.extraJavaOptions"]
        == own
    )


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("spark.speculation", "true", "second writer"),
        ("spark.master", "local", "--master"),
        ("spark.mirrorbook.port", "kafka", "no port number"),
        ("spark.mirrorbook.port", "65536", "no port number"),
        ("driver.memory", "1g", "no Spark setting"),
    ],
)
def test_what_cannot_be_chosen_is_refused_with_the_reason(key: str, value: str, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        _build_settings("local[2]", None, {key: value})


def test_what_is_so_anyway_may_be_said() -> None:
    assert _build_settings("local[2]", None, {"spark.speculation": "false"})["spark.speculation"] == "false"


def test_settings_of_sql_stay_the_users() -> None:
    mine = {"spark.sql.adaptive.enabled": "true", "spark.sql.execution.arrow.maxRecordsPerBatch": "500"}
    assert _build_settings("local[2]", None, mine).items() >= mine.items()
    assert not [key for key in _build_settings("local[2]", None, {}) if key.startswith("spark.sql.")]


def test_a_master_that_spark_has_dropped_is_refused() -> None:
    with pytest.raises(BadRequest, match="is not a Spark master"):
        _build_settings("mesos://far:5050", None, {})


def test_workers_come_from_our_daemon_unless_the_package_travels_with_the_job() -> None:
    daemon = "spark.python.daemon.module"
    assert _build_settings("spark://far:7077", 4, {})[daemon] == "mirror_core.spark.daemon"
    assert daemon not in _build_settings("spark://far:7077", 4, {"spark.submit.pyFiles": "mirrorbook.zip"})


def test_the_driver_listens_where_executors_reach_sparks_own() -> None:
    assert get_listen_address({"spark.driver.host": "mirror-1"}) == ListenAddress(
        bind="mirror-1", host="mirror-1", port=0
    )
    behind = {"spark.driver.host": "svc", "spark.driver.bindAddress": "0.0.0.0", "spark.mirrorbook.port": "7080"}
    assert get_listen_address(behind) == ListenAddress(bind="0.0.0.0", host="svc", port=7080)


def test_drivers_of_one_process_listen_on_ports_one_after_the_other() -> None:
    fixed = {"spark.driver.host": "svc", "spark.mirrorbook.port": "7080"}
    assert [get_listen_address(fixed, number).port for number in range(3)] == [7080, 7081, 7082]
    assert get_listen_address({"spark.driver.host": "svc"}, 2).port == 0
    SparkFleet("local[*]", 1, 36, {"spark.mirrorbook.port": "65500"})
    with pytest.raises(BadRequest, match="37 mirrors take as many ports"):
        SparkFleet("local[*]", 1, 37, {"spark.mirrorbook.port": "65500"})


def test_a_runs_comparison_and_salvage_get_the_users_settings_or_refuse_them_at_once(tmp_path: Path) -> None:
    def made(*conf: str) -> Services:
        return make_services(tmp_path / "mirrorbook.yaml", CompareRunner.SPARK, "local[2]", None, list(conf))

    services = made("spark.driver.memory=1g")
    assert isinstance(services.parity, SparkParity)
    assert isinstance(services.salvage, SparkSalvage)
    assert services.parity._conf == services.salvage._conf == {"spark.driver.memory": "1g"}
    with pytest.raises(BadRequest, match="second writer"):
        made("spark.speculation=true")


def test_settings_are_given_as_key_and_value() -> None:
    assert parse_spark_conf(["spark.a=b=c", "spark.ui.enabled=true"]) == {"spark.a": "b=c", "spark.ui.enabled": "true"}
    assert parse_spark_conf(None) == {}
    with pytest.raises(typer.BadParameter, match="is not KEY=VALUE"):
        parse_spark_conf(["spark.ui.enabled"])
    with pytest.raises(BadRequest, match="second writer"):
        parse_spark_conf(["spark.speculation=true"])


def test_two_threads_that_want_spark_start_it_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lends Spark's variables to the environment and takes them back: side by side, some would stay."""
    inside, company = threading.Semaphore(1), threading.Event()

    def start(conf: SparkConf) -> SparkContext:
        if not inside.acquire(blocking=False):
            company.set()
        company.wait(0.2)
        inside.release()
        raise Py4JError("not today")

    def want() -> None:
        with pytest.raises(RemoteFault, match="not today"):
            get_spark_context("test", "local[1]")

    monkeypatch.setattr(SparkContext, "getOrCreate", start)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(want) for _ in range(2)]:
            done.result()
    assert not company.is_set()


def test_spark_3_does_not_start_on_a_java_that_its_arrow_cannot_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert list_java_versions("4.0.1") == list_java_versions("4.1.4") == (17, 21)
    monkeypatch.setattr(pyspark, "__version__", "3.5.6")
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("", encoding="utf-8")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "release").write_text('JAVA_VERSION="21.0.8"\n', encoding="utf-8")
    with pytest.raises(
        BadRequest, match=r"no Java 17 for Spark 3\.5\.6: JAVA_HOME is .* holds Java 21\. Set JAVA_HOME$"
    ):
        find_spark_java_home()
    (tmp_path / "release").write_text(
        'JAVA_VERSION="17.0.12"\nMODULES="java.base jdk.incubator.vector java.sql"\n', encoding="utf-8"
    )
    assert find_spark_java_home() == tmp_path


def test_a_local_spark_takes_messages_of_nobody_else() -> None:
    assert _build_settings("local[2]", None, {})["spark.authenticate"] == "true"
    assert "spark.authenticate" not in _build_settings("spark://far:7077", None, {}), (
        "the cluster must have the same secret"
    )
