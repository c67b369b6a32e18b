"""No secret goes into arguments of processes, and nobody else changes where passwords are sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_core.cli.command_options import parse_spark_conf
from mirror_core.kafka.config import Principal, load_config
from mirror_core.model.errors import BadRequest

SECRET = "c0rrect-h0rse"
YAML = """\
clusters:
  east:
    bootstrap.servers: east:9092
    sasl.username: mirrorbook
    sasl.password: ${file:control.properties:east}
"""


@pytest.mark.parametrize(
    "key",
    [
        "spark.hadoop.fs.s3a.secret.key",
        "spark.hadoop.fs.s3a.bucket.receipts.secret.key",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.s3a.session.token",
        "spark.hadoop.fs.azure.account.key.receipts.dfs.core.windows.net",
        "spark.hadoop.fs.azure.account.oauth2.client.secret",
        "spark.hadoop.fs.azure.sas.container.account.blob.core.windows.net",
        "spark.hadoop.fs.gs.auth.service.account.private.key",
        "spark.executorEnv.AWS_SECRET_ACCESS_KEY",
        "spark.authenticate.secret",
        "spark.ssl.keyPassword",
        "spark.ssl.rpc.trustStorePassword",
    ],
)
def test_a_setting_that_holds_a_secret_is_refused_by_its_name(key: str) -> None:
    with pytest.raises(BadRequest, match="holds a secret") as refused:
        parse_spark_conf([f"{key}={SECRET}"])
    assert key in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("value", [f"-Da=b -Djavax.net.ssl.keyStorePassword={SECRET}", f"s3a://key:{SECRET}@bucket/x"])
def test_a_secret_inside_of_a_value_is_refused(value: str) -> None:
    with pytest.raises(BadRequest, match=r"spark\.driver\.extraJavaOptions holds a secret") as refused:
        parse_spark_conf([f"spark.driver.extraJavaOptions={value}"])
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "setting",
    [
        "spark.hadoop.fs.s3a.aws.credentials.provider=software.amazon.awssdk.InstanceProfile",
        "spark.hadoop.hadoop.security.credential.provider.path=jceks://file/etc/mirrorbook/store.jceks",
        "spark.hadoop.fs.s3a.delegation.token.binding=org.apache.hadoop.Binding",
        "spark.authenticate.secret.file=/etc/mirrorbook/spark",
        "spark.authenticate.secretBitLength=256",
        "spark.kubernetes.executor.secrets.mirrorbook-data=/etc/mirrorbook",
        "spark.kubernetes.executor.secretKeyRef.AWS_SECRET_ACCESS_KEY=store:key",
        "spark.kubernetes.authenticate.driver.oauthTokenFile=/run/token",
        "spark.security.credentials.hive.enabled=false",
        "spark.jars.packages=org.apache.hadoop:hadoop-aws:3.4.2",
        "spark.hadoop.fs.s3a.endpoint=http://127.0.0.1:9000",
    ],
)
def test_names_of_files_providers_and_kubernetes_secrets_are_no_secrets(setting: str) -> None:
    key, _, value = setting.partition("=")
    assert parse_spark_conf([setting]) == {key: value}


@pytest.mark.parametrize("name", ["mirrorbook.yaml", "control.properties"])
def test_files_that_every_user_can_change_are_refused(tmp_path: Path, name: str) -> None:
    config = tmp_path / "mirrorbook.yaml"
    config.write_text(YAML, encoding="utf-8")
    (tmp_path / "control.properties").write_text(f"east={SECRET}\n", encoding="utf-8")
    (tmp_path / name).chmod(0o666)
    with pytest.raises(BadRequest, match=f"{name}: every user of this machine can change it.* chmod o-w") as refused:
        load_config(config).cluster("east").properties(Principal.CONTROL)["sasl.password"]
    assert SECRET not in str(refused.value)
    (tmp_path / name).chmod(0o664)
    assert load_config(config).cluster("east").properties(Principal.CONTROL)["sasl.password"] == SECRET
