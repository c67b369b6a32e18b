"""mirrorbook.yaml and commands made of mm2.properties; what has no counterpart is named, and no secret is shown."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from mirror_core.kafka.config import load_config
from mirror_core.model.errors import BadRequest
from mirrorbook_tools.mirrormaker.conversion import Mm2Conversion, convert
from mirrorbook_tools.mirrormaker.java_properties import MAX_FILE_BYTES
from mirrorbook_tools.mirrormaker.mm2_config import Mm2Config, Mm2Flow, read_mm2_config
from tests.support.cli_process import invoked
from tests.support.typed_lines import parse

CLUSTERS = """
clusters = east, west
east.bootstrap.servers = east-1:9092, east-2:9092
west.bootstrap.servers = west-1:9092
"""
FLOW = f"{CLUSTERS}east->west.enabled = true\n"
EAST_WEST = Mm2Flow("east", "west")
FILE_PROVIDER = """
config.providers = file, vault
config.providers.file.class = org.apache.kafka.common.config.provider.FileConfigProvider
config.providers.env.class = org.apache.kafka.common.config.provider.EnvVarConfigProvider
config.providers.vault.class = com.example.VaultProvider
"""
Read = Callable[[str], Mm2Config]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def write_and_read(text: str) -> Mm2Config:
        path = tmp_path / "mm2.properties"
        path.write_text(text, encoding="latin-1")
        return read_mm2_config(path)

    return write_and_read


def find_options(conversion: Mm2Conversion, name: str, flow: Mm2Flow = EAST_WEST) -> list[str]:
    """Of `mirror create`."""
    words = shlex.split(next(command for command in conversion.commands[flow] if "create" in command))
    return [value for option, value in pairwise(words) if option == name]


def find_codes(conversion: Mm2Conversion) -> set[tuple[str, str]]:
    return {(finding.code, finding.subject) for finding in (*conversion.differences, *conversion.settings)}


def clusters_of(conversion: Mm2Conversion) -> dict[str, dict[str, str]]:
    clusters: dict[str, dict[str, str]] = yaml.safe_load(conversion.configuration)["clusters"]
    return clusters


def test_filters_of_a_flow_win_over_those_for_all(read: Read) -> None:
    text = f"{FLOW}topics = all.*\neast->west.topics = orders.*, billing\ngroups = app\\\\.\\\\d+\n"
    converted = convert(read(text))
    assert find_options(converted, "--topics") == ["orders.*", "billing"]
    assert find_options(converted, "--groups") == [r"app\.\d+"]


def test_without_filters_mirror_makers_defaults_hold(read: Read) -> None:
    converted = convert(read(FLOW))
    assert find_options(converted, "--topics") == [".*"]
    assert {r".*\.replica", r"(.*\.)?heartbeats", r"west\..*"} <= set(find_options(converted, "--exclude-topics"))
    assert "connect-.*" in find_options(converted, "--exclude-groups")


@pytest.mark.parametrize("name", ["topics.exclude", "topics.blacklist", "east->west.topics.exclude"])
def test_excluded_topics_are_known_by_old_and_new_names(read: Read, name: str) -> None:
    excluded = find_options(convert(read(f"{FLOW}{name} = temporary.*\n")), "--exclude-topics")
    assert "temporary.*" in excluded
    assert r".*\.replica" not in excluded


def test_groups_and_rights_that_mirror_maker_leaves_out_stay_out(read: Read) -> None:
    converted = convert(read(f"{FLOW}emit.checkpoints.enabled = false\neast->west.sync.topic.acls.enabled = FALSE\n"))
    assert find_options(converted, "--groups") == [""]
    assert find_options(converted, "--exclude-principals") == [".*"]
    assert {("mm2_groups_left_out", "east->west"), ("mm2_rights_stay_out", "east->west")} <= find_codes(converted)


@pytest.mark.parametrize("key", ["config.properties.exclude", "east->west.config.properties.blacklist"])
def test_settings_that_mirror_maker_excludes_are_excluded_unless_a_mirror_needs_them(read: Read, key: str) -> None:
    excluded = r"follower\\..*, message\\.timestamp\\.type, retention\\..*"
    converted = convert(read(f"{FLOW}{key} = {excluded}\n"))
    assert find_options(converted, "--exclude-settings") == [
        r"follower\..*",
        r"retention\..*",
    ]
    [needed] = converted.settings
    assert (needed.code, needed.subject, needed.values["expression"]) == (
        *("mm2_setting_needed", key),
        r"message\.timestamp\.type",
    )


def test_without_sync_of_settings_all_are_excluded(read: Read) -> None:
    text = f"{FLOW}east->west.sync.topic.configs.enabled = false\nconfig.properties.exclude = a\n"
    assert find_options(convert(read(text)), "--exclude-settings") == [".*"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", []),
        ("replication.factor = 3", ["3"]),
        ("replication.factor = 3\neast->west.replication.factor = 2", ["2"]),
        ("replication.factor = -1", ["default"]),
        ("replication.factor = many", []),
    ],
)
def test_the_replication_factor_of_new_topics_is_taken_over(read: Read, line: str, expected: list[str]) -> None:
    assert find_options(convert(read(f"{FLOW}{line}\n")), "--replication-factor") == expected


def test_each_command_can_be_typed(read: Read) -> None:
    text = f"{FLOW}west->east.enabled = true\ntopics = -x.*, it's, $(reboot), a b\ngroups =\nreplication.factor = -1\n"
    text += r"config.properties.exclude = follower\\.replication\\..*" + "\n"
    for commands in convert(read(text)).commands.values():
        for command in commands:
            parse(command.removeprefix("mirrorbook "))


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ("", "mm2_names_change"),
        ("replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy\n", "mm2_names_stay"),
        ("east->west.replication.policy.class = com.example.MyPolicy\n", "mm2_names_unknown"),
    ],
)
def test_what_becomes_of_names_is_said_for_each_policy(read: Read, settings: str, code: str) -> None:
    converted = convert(read(f"{FLOW}{settings}"))
    assert (code, "east->west") in find_codes(converted)
    is_listed = any("mm2-offsets" in command for command in converted.commands[EAST_WEST])
    assert is_listed == (code == "mm2_names_change")


def test_names_of_topics_follow_separator_and_location(read: Read) -> None:
    config = read(f"{FLOW}replication.policy.separator = __\noffset-syncs.topic.location = target\n")
    names = config.names(EAST_WEST)
    assert (names.prefix, names.checkpoints) == ("east__", "east__checkpoints__internal")
    assert (names.offset_syncs, names.is_on_target) == ("mm2-offset-syncs__east__internal", True)
    plain = read(
        f"{FLOW}replication.policy.separator = _\nreplication.policy.internal.topic.separator.enabled = false\n"
    )
    assert plain.names(EAST_WEST).checkpoints == "east.checkpoints.internal"
    assert read(FLOW).names(EAST_WEST).offset_syncs == "mm2-offset-syncs.west.internal"


def test_a_secret_becomes_a_variable_and_is_nowhere_shown(read: Read, tmp_path: Path) -> None:
    text = f"""{FLOW}{FILE_PROVIDER}
security.protocol = SASL_SSL
sasl.mechanism = SCRAM-SHA-512
east.sasl.jaas.config = x.ScramLoginModule required username="mm2" password="hunter2";
west.sasl.jaas.config = x.ScramLoginModule required username="${{env:WEST_USER}}" password="${{file:/run/s:west}}";
ssl.truststore.location = /etc/trust.jks
ssl.truststore.password = hunter2
east.ssl.keystore.location = /etc/key.p12
east.ssl.keystore.password = hunter2
east.ssl.key.password = ${{vault:secret/kafka:key}}
hunter2
hunter2
some.hunter2
east.consumer.sasl.jaas.config = password="hunter2"
"""
    converted = convert(read(text))
    east, west = clusters_of(converted)["east"], clusters_of(converted)["west"]
    assert (east["sasl.username"], east["sasl.password"]) == ("mm2", "${env:EAST_PASSWORD}")
    assert (west["sasl.username"], west["sasl.password"]) == ("${env:WEST_USER}", "${file:/run/s:west}")
    assert east["ssl.key.password"] == "${env:EAST_KEY_PASSWORD}"
    assert east["ssl.ca.location"] == "east-ca.pem"
    for as_json in ((), ("--json",)):
        shown = invoked("import", "mm2", str(tmp_path / "mm2.properties"), *as_json)
        assert shown.exit_code == 0
        assert "hunter2" not in shown.output
    assert ("mm2_reference_provider", "config.providers.vault.class") in find_codes(converted)


def test_the_printed_configuration_is_one_that_mirrorbook_reads(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"""{FLOW}
security.protocol = SASL_SSL
sasl.mechanism = PLAIN
sasl.jaas.config = x.PlainLoginModule required username=mm2 password=hunter2;
ssl.truststore.type = PEM
ssl.truststore.location = /etc/ca.pem
ssl.endpoint.identification.algorithm =
"""
    path = tmp_path / "mirrorbook.yaml"
    path.write_text(convert(read(text)).configuration, encoding="utf-8")
    monkeypatch.setenv("EAST_PASSWORD", "a")
    monkeypatch.setenv("WEST_PASSWORD", "b")
    loaded = load_config(path)
    assert loaded.cluster("east").bootstrap == (("east-1", 9092), ("east-2", 9092))
    assert loaded.cluster("west").properties()["sasl.password"] == "b"
    assert loaded.cluster("west").properties()["ssl.ca.location"] == "/etc/ca.pem"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("replication.factor = ${env:FACTOR}", "mm2_replication_factor"),
        ("east->west.replication.factor = 0", "mm2_replication_factor"),
        ("use.defaults.from = target", "mm2_settings_sync"),
        (r"config.properties.exclude = message\\.timestamp\\.type", "mm2_setting_needed"),
        ("config.properties.blacklist = (?!x).*", "mm2_expression"),
        ("refresh.topics.interval.seconds = 5", "mm2_interval"),
        ("topic.filter.class = com.example.F", "mm2_own_class"),
        ("east->west.transforms = route", "mm2_transformation"),
        ("value.converter = com.example.C", "mm2_transformation"),
        ("east.consumer.fetch.min.bytes = 1", "mm2_client_tuning"),
        ("west.producer.acks = 1", "mm2_client_tuning"),
        ("offset-syncs.topic.replication.factor = 1", "mm2_inner_work"),
        ("offset.lag.max = 1", "mm2_inner_work"),
        ("west.offset.storage.replication.factor = 1", "mm2_worker"),
        ("tasks.max = 8", "mm2_worker"),
        ("dedicated.mode.enable.internal.rest = true", "mm2_worker"),
        ("metric.reporters = com.example.R", "mm2_metrics"),
        ("east.ssl.cipher.suites = A", "mm2_security_setting"),
        ("east.sasl.mechanism = OAUTHBEARER", "mm2_login_unsupported"),
        ("south.bootstrap.servers = s:9092", "mm2_unknown"),
        ("east->west.topics = (?!x).*", "mm2_expression"),
    ],
)
def test_each_setting_without_a_counterpart_is_named_with_its_line(read: Read, line: str, code: str) -> None:
    converted = convert(read(f"{FLOW}{line}\n"))
    found = [finding for finding in converted.settings if finding.code == code]
    assert [(finding.subject, finding.values["line"]) for finding in found] == [(line.partition(" =")[0], 6)]


def test_what_has_a_counterpart_is_not_named(read: Read) -> None:
    text = f"{FLOW}topics = a\ngroups = b\nsync.group.offsets.enabled = true\nsecurity.protocol = PLAINTEXT\n"
    assert convert(read(text)).settings == ()


def test_a_repeated_key_counts_where_it_is_last_and_is_named(read: Read) -> None:
    converted = convert(read(f"{FLOW}topics = a\ntopics = b\n"))
    assert find_options(converted, "--topics") == ["b"]
    assert [(f.code, f.values["line"]) for f in converted.settings] == [("mm2_repeated", 6)]


def test_both_directions_need_different_topics(read: Read) -> None:
    converted = convert(read(f"{FLOW}west->east.enabled = true\n"))
    assert set(converted.commands) == {EAST_WEST, Mm2Flow("west", "east")}
    assert ("mm2_both_directions", "east->west") in find_codes(converted)
    assert r"east\..*" in find_options(converted, "--exclude-topics", Mm2Flow("west", "east"))


@pytest.mark.parametrize("key", ["exactly.once.source.support", "west.exactly.once.source.support"])
def test_exactly_once_is_said_both_ways(read: Read, key: str) -> None:
    for text, expected in ((FLOW, False), (f"{FLOW}{key} = enabled\n", True)):
        (finding,) = [f for f in convert(read(text)).differences if f.code == "mm2_exactly_once"]
        assert finding.values["transactional"] is expected


def test_a_connectors_own_properties_say_the_same(read: Read) -> None:
    text = """
name = mm2-source
connector.class = org.apache.kafka.connect.mirror.MirrorSourceConnector
source.cluster.alias = east
target.cluster.alias = west
source.cluster.bootstrap.servers = east-1:9092
target.cluster.bootstrap.servers = west-1:9092
source.consumer.fetch.min.bytes = 1
topics = orders
"""
    converted = convert(read(text))
    assert clusters_of(converted)["west"] == {"bootstrap.servers": "west-1:9092"}
    assert find_options(converted, "--topics") == ["orders"]
    assert ("mm2_client_tuning", "east.consumer.fetch.min.bytes") in find_codes(converted)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", ""),
        ("clusters = east\n", " line 1"),
        ("clusters = east, we\\tst\n", " line 1"),
        (f"clusters = {','.join(f'c{n}' for n in range(30))}\n", " line 1"),
        (CLUSTERS, ""),
        (f"{CLUSTERS}east->west.enabled = yes\n", ""),
        ("clusters = east, west\neast->west.enabled = true\nwest.bootstrap.servers = w:1\n", ""),
        (f"{FLOW}east.bootstrap.servers = nowhere\n", " line 6"),
        (f"{FLOW}west.bootstrap.servers = a:1,b:x\n", " line 6"),
    ],
)
def test_a_file_that_says_nothing_usable_is_refused(read: Read, text: str, where: str) -> None:
    with pytest.raises(BadRequest) as refused:
        convert(read(text))
    assert f"mm2.properties{where}:" in str(refused.value)


def test_names_that_steer_a_terminal_are_written_out(read: Read, tmp_path: Path) -> None:
    read(f"{FLOW}topics = a\\u001b[2Jb\nx.\\u001b[31mkey = 1\neast.client.id = \\u202e\n")
    shown = invoked("import", "mm2", str(tmp_path / "mm2.properties")).output
    assert not {"\x1b", "\u202e"} & set(shown)


@pytest.mark.parametrize("filler", ["${", "${file:", "east->", "a.", "\\\n", "password="])
def test_a_large_file_of_one_thing_is_read_or_refused(read: Read, filler: str) -> None:
    text = f"{FLOW}{FILE_PROVIDER}east.sasl.jaas.config = "
    convert(read(text + filler * ((MAX_FILE_BYTES - len(text)) // len(filler))))


def test_an_alias_that_would_name_a_way_home_gives_another_name(read: Read) -> None:
    text = "clusters = a, b-back\na.bootstrap.servers=a:1\nb-back.bootstrap.servers=b:1\na->b-back.enabled=true\n"
    (commands,) = convert(read(text)).commands.values()
    assert "mirrorbook mirror start a-to-b-back-mirror" in commands
