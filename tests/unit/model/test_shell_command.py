"""Lines to paste: what is printed splits into what was meant, whatever names Kafka's users chose."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.decide.quiescence_check import format_min_isr_command
from mirror_core.mirrors.fence_manual_commands import format_fence_commands
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Pattern, Permission, Resource
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import ClusterName, MirrorName, Partition
from mirror_core.model.text import escape_invisible, format_option, format_shell_command
from mirror_core.rights.acl_rules import format_acl_command

ROOT: Final = Path(__file__).parents[3]
KAFKA_TOOL_WITH_OPTIONS: Final = re.compile(
    r"kafka-([a-z-]+\.sh|acls|configs|consumer-groups|leader-election|topics|transactions) (.* )?--", re.DOTALL
)
ARGUMENTS: Final = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
MIRROR: Final = Mirror(
    name=MirrorName("m"),
    source=ClusterName("east"),
    destination=ClusterName("west"),
    source_id="e",
    destination_id="w",
    topics=(".*",),
    producer_id=1 << 62,
    desired=DesiredState.STARTED,
    created_ms=0,
)
_WORD: Final = re.compile(r"\$'((?:[^'\\]|\\.)*)'|((?:[^ '\"$]|'[^']*'|\"'\")+)")
_ESCAPED_BYTES: Final = re.compile(rb"\\([0-7]{3}|.)")
HOSTILE: Final = (
    "x\ntouch pwned\\\x1b[2J\u202e'é$(touch pwned)",
    "x'; touch pwned; '",
    "$(touch pwned)",
    "`touch pwned`",
    "a\ntouch pwned\n",
    "--force",
    "CN=O'Brien,O=A B",
)


def split_line(line: str) -> list[str]:
    """As bash does: `shlex` knows no `$'…'`."""
    words, position = list[str](), 0
    while position < len(line):
        match = _WORD.match(line, position)
        assert match, line[position:]
        if match[2]:
            words += shlex.split(match[2])
        else:
            raw = match[1].encode()
            words.append(_ESCAPED_BYTES.sub(lambda m: bytes([int(m[1], 8)]) if len(m[1]) == 3 else m[1], raw).decode())
        assert line[match.end() : match.end() + 1] in ("", " ")
        position = match.end() + 1
    return words


@given(st.lists(ARGUMENTS))
def test_a_printed_command_splits_into_its_arguments(arguments: list[str]) -> None:
    assert split_line(format_shell_command("kafka-acls.sh", *arguments)) == ["kafka-acls.sh", *arguments]


@given(st.lists(ARGUMENTS))
def test_a_command_is_shown_as_it_is_in_one_line(arguments: list[str]) -> None:
    """Of a name with a line break somebody would paste one half; escaped afterwards it would be another name."""
    line = format_shell_command("kafka-acls.sh", *arguments)
    assert escape_invisible(line) == line


@pytest.mark.parametrize("name", HOSTILE)
def test_a_shell_passes_a_hostile_name_as_one_argument(name: str, tmp_path: Path) -> None:
    line = format_shell_command("printf", r"%s\0", *format_option("--transactional-id", name))
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, check=True, timeout=30)
    expected = [f"--transactional-id={name}"] if name.startswith("-") else ["--transactional-id", name]
    assert done.stdout.decode().split("\0")[:-1] == expected
    assert not list(tmp_path.iterdir())


@given(name=ARGUMENTS, principal=ARGUMENTS, host=ARGUMENTS, bootstrap=ARGUMENTS, remove=st.booleans())
def test_the_line_of_an_acl_names_exactly_that_acl(
    name: str, principal: str, host: str, bootstrap: str, remove: bool
) -> None:
    acl = Acl(
        resource=Resource.TRANSACTIONAL_ID,
        name=name,
        pattern=Pattern.PREFIXED,
        principal=principal,
        host=host,
        operation=Operation.WRITE,
        permission=Permission.DENY,
    )
    expected = [
        *("kafka-acls.sh", *format_option("--bootstrap-server", bootstrap), "--remove" if remove else "--add"),
        *(
            *format_option("--deny-principal", principal),
            "--operation",
            "Write",
            *format_option("--transactional-id", name),
        ),
        *("--resource-pattern-type", "prefixed", *(format_option("--deny-host", host) if host != "*" else ())),
    ]
    assert split_line(format_acl_command(acl, bootstrap=bootstrap, remove=remove)) == expected


@given(name=ARGUMENTS, controller=ARGUMENTS)
def test_the_lines_of_a_fence_name_its_transactional_ids(name: str, controller: str) -> None:
    denied = Acl(
        resource=Resource.TRANSACTIONAL_ID,
        name=name,
        principal="User:*",
        operation=Operation.WRITE,
        permission=Permission.DENY,
    )
    entry = LedgerEntry(mirror=MIRROR.name, cluster=MIRROR.source, acl=denied, purpose=AclPurpose.FENCE)
    _, line = format_fence_commands(MIRROR, [entry], [Partition("orders", 0)], controller)
    words = split_line(line)
    named = format_option("--transactional-id", name)
    assert tuple(words[-len(named) :]) == named
    where = format_option("--bootstrap-controller", controller)
    assert tuple(words[1 : 1 + len(where)]) == where


@given(bootstrap=ARGUMENTS, topic=ARGUMENTS)
def test_the_line_that_lowers_min_insync_replicas_names_its_topic(bootstrap: str, topic: str) -> None:
    words = split_line(format_min_isr_command(bootstrap, topic, 1))
    assert words[-2:] == ["--add-config", "min.insync.replicas=1"]
    named = format_option("--entity-name", topic)
    assert tuple(words[-2 - len(named) : -2]) == named


def test_no_line_of_a_kafka_tool_is_put_together_by_hand() -> None:
    packages = ("mirror_core", "mirrorbook_tools", "plugins")
    files = [file for package in packages for file in sorted((ROOT / package).rglob("*.py"))]
    assert len(files) > 300
    assert {str(file.relative_to(ROOT)): found for file in files if (found := list(hand_made(file.read_text())))} == {}


@pytest.mark.parametrize(
    "code",
    [
        'f"kafka-acls.sh --add --topic {name}"',
        '(f"grant it: kafka-acls --add "\n f"--topic {name}")',
        '"kafka-topics.sh --delete --topic " + name',
        '"kafka-topics.sh --delete --topic %s" % name',
        '"kafka-topics.sh --delete --topic {}".format(name)',
    ],
)
def test_a_line_that_is_put_together_by_hand_is_found(code: str) -> None:
    assert list(hand_made(f"line = {code}\n"))


def hand_made(code: str) -> Iterator[int]:
    """Lines of Python code where the name of one of Kafka's tools is joined with something else to a text."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.JoinedStr(values=parts):
                texts = parts if any(isinstance(part, ast.FormattedValue) for part in parts) else []
            case ast.BinOp(op=ast.Add() | ast.Mod(), left=left, right=right):
                texts = [left, right]
            case ast.Call(func=ast.Attribute(attr="format" | "join", value=value), args=arguments):
                texts = [value, *(one for a in arguments if isinstance(a, ast.List | ast.Tuple) for one in a.elts)]
            case _:
                continue
        joined = "".join(t.value if isinstance(t, ast.Constant) and isinstance(t.value, str) else "?" for t in texts)
        if KAFKA_TOOL_WITH_OPTIONS.search(joined):
            yield node.lineno
