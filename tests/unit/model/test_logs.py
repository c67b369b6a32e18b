"""The log: fields beside words, one line a record whatever a name holds, and nothing below the level asked for."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator

import pytest

from mirror_core.model.logs import (
    JsonFormatter,
    LogFormat,
    LogLevel,
    LogSettings,
    configure_logging,
    get_log_settings,
    get_logger,
    log_context,
)
from mirror_core.model.names import Partition

HOSTILE = "g\n2026-11-22 ERROR forged \x1b[2J\u202e"
_log = get_logger("mirror_core.test")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """The log of the test process, put back."""
    loggers = [logging.getLogger(name) for name in (None, "mirror_core")]
    before = [(one, one.level, one.handlers[:]) for one in loggers]
    yield
    for one, level, handlers in before:
        one.setLevel(level)
        one.handlers[:] = handlers


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    said = capsys.readouterr()
    assert said.out == ""
    return said.err.splitlines()


def test_text_has_time_level_place_fields_and_words_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings())
    with log_context(mirror="orders", epoch=7, task=0):
        _log.warning("looks again: %s", HOSTILE, partition=Partition("orders", 3))
    (line,) = lines(capsys)
    when, rest = line.split(" ", 1)
    assert when.endswith("Z")
    assert rest == (
        "WARNING mirror_core.test mirror=orders partition=orders-3 epoch=7 task=0: "
        r"looks again: g\n2026-11-22 ERROR forged \x1b[2J\u202e"
    )


def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings(level=LogLevel.INFO, format=LogFormat.JSON))
    _log.info("group %s", HOSTILE, mirror="m\n", task=1)
    (found,) = (json.loads(line) for line in lines(capsys))
    del found["time"]
    assert found == {
        "level": "info",
        "logger": "mirror_core.test",
        "message": f"group {HOSTILE}",
        "mirror": "m\n",
        "task": 1,
    }


def test_json_can_be_written_whatever_a_name_holds() -> None:
    # Not through the log: pytest's own capture hands it on to another process, which cannot encode it.
    record = logging.makeLogRecord({"msg": "half a pair: \ud800", "fields": {"cluster": "\udfff"}})
    found = json.loads(JsonFormatter().format(record))
    assert (found["message"], found["cluster"]) == (r"half a pair: \ud800", r"\udfff")


@pytest.mark.parametrize(
    ("level", "seen"),
    [
        (LogLevel.DEBUG, ["debug", "info", "warning", "error"]),
        (LogLevel.INFO, ["info", "warning", "error"]),
        (LogLevel.WARNING, ["warning", "error"]),
        (LogLevel.ERROR, ["error"]),
    ],
)
def test_the_level_is_kept_to(level: LogLevel, seen: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings(level=level, format=LogFormat.JSON))
    for write in (_log.debug, _log.info, _log.warning, _log.error):
        write(write.__name__)
    assert [json.loads(line)["message"] for line in lines(capsys)] == seen


def test_libraries_say_no_more_than_warnings_at_any_level(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings(level=LogLevel.DEBUG))
    logging.getLogger("py4j.clientserver").debug("Command to send: sasl.password=secret")
    logging.getLogger("py4j.clientserver").warning("gone")
    (line,) = lines(capsys)
    assert line.endswith("WARNING py4j.clientserver: gone")


def test_fields_hold_for_the_thread_that_entered_them_and_as_long(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings(format=LogFormat.JSON))
    with log_context(mirror="orders"):
        with log_context(step="fence"):
            _log.warning("inside")
        _log.warning("outside")
        other = threading.Thread(target=_log.warning, args=("elsewhere",))
        other.start()
        other.join()
    found = {(one := json.loads(line))["message"]: (one.get("mirror"), one.get("step")) for line in lines(capsys)}
    assert found == {"inside": ("orders", "fence"), "outside": ("orders", None), "elsewhere": (None, None)}


def test_a_field_that_nobody_knows_is_our_mistake() -> None:
    with pytest.raises(TypeError, match="no fields of a log line: user"), log_context(user="me"):  # type: ignore[call-arg]
        pass


def test_configured_again_it_writes_once_and_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings(format=LogFormat.JSON))
    configure_logging(LogSettings(level=LogLevel.ERROR))
    _log.error("once")
    assert len(lines(capsys)) == 1
    assert get_log_settings() == LogSettings(level=LogLevel.ERROR)
    assert get_log_settings().to_options() == ("--log-level", "error", "--log-format", "text")


@pytest.mark.parametrize("format", LogFormat)
def test_a_traceback_stays_with_its_line(format: LogFormat, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings(format=format))
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        _log.error("failed", exc_info=True)
    said = lines(capsys)
    assert not any("\x1b" in line or line.startswith("2026-11-22 ERROR forged") for line in said)
    if format is LogFormat.JSON:
        assert json.loads(said[0])["traceback"].startswith("Traceback")
        assert len(said) == 1
