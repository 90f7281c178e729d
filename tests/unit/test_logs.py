"""Stories about a log that cannot be written."""

from __future__ import annotations

import errno
import io
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qpid_ha_broker.amqp.nodes.directory import ServerAddress
from qpid_ha_broker.server.command_line import reader_of_log
from qpid_ha_broker.server.runtime.logs import NoticeLog, configure_logging
from qpid_ha_config.defaults import CONFIG_FILE
from several_sets import BETA, SeveralSets

log = logging.getLogger("broker")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)


def test_a_full_disk_sends_the_lines_to_stderr_and_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", Path("/dev/full"))
    log.info("first")
    log.info("second")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("broker ")[-1] for line in lines[1:]] == ["first", "second"]
    assert "No space left on device" in lines[0]
    assert "Traceback" not in "".join(lines)


def test_a_command_in_the_log_of_a_broker_that_shares_its_machine_names_that_broker(tmp_path: Path) -> None:
    """As with three brokers of one machine: what the log of one suggests must not go to another one."""
    config = tmp_path / "node2.yaml"
    for reader, typed in (
        (reader_of_log("node2", 0, config), f"QPID_HA_CONFIG={config} qpid-ha -b node2 history"),
        (reader_of_log("node2", 0, CONFIG_FILE), "qpid-ha history"),
    ):
        configure_logging("info", tmp_path / "log", reader)
        configure_logging("debug", tmp_path / "log")
        log.info("%s may not lead: see `qpid-ha history`", "node2")
        assert (tmp_path / "log").read_text().splitlines()[-1].endswith(f"node2 may not lead: see `{typed}`")


def test_lines_go_to_the_file_again_once_it_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "logs"
    directory.mkdir()
    configure_logging("info", directory / "log")
    log.info("before")
    shutil.rmtree(directory)
    log.info("lost directory")
    directory.mkdir()
    log.info("after")
    assert "lost directory" in capsys.readouterr().err
    assert (directory / "log").read_text(encoding="utf-8").endswith("after\n")


class Disk(io.StringIO):
    """What stderr leads to."""

    is_full = False

    def write(self, text: str) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(text)


@pytest.mark.parametrize("file", [None, Path("/dev/full")])
def test_when_nothing_takes_the_lines_the_broker_goes_on_and_says_so_once_there_is_room(
    file: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    monkeypatch.setattr(sys, "stderr", disk)
    configure_logging("info", file)
    disk.is_full = True
    log.info("first")
    log.info("second")
    disk.is_full = False
    log.info("third")
    log.info("fourth")
    said = disk.getvalue()
    assert "first" not in said
    assert said.count("could not be written 2 times: No space left on device") == 1
    assert said.index("third") < said.index("fourth")
    assert "Traceback" not in said


@pytest.mark.parametrize("primary", [None, BETA])
def test_links_that_are_sent_elsewhere_again_and_again_are_counted_by_one_line(
    caplog: pytest.LogCaptureFixture, primary: ServerAddress | None
) -> None:
    caplog.set_level(logging.INFO)
    broker, notices = SeveralSets(), NoticeLog()
    broker.lead_elsewhere("red")
    if primary is None:
        del broker.directory.primaries["red"]
    for _ in range(50):
        client = broker.connect()
        client.receiver("red", 1)
        broker.settle_down()
        client.vanish()
        notices.log(broker.container.take_notices())
    (record,) = [record for record in caplog.records if "red" in record.getMessage()]
    assert record.name == "connection"
    assert record.levelno == (logging.WARNING if primary is None else logging.INFO)
    assert notices._elsewhere._left_out[record.levelno][0] == 49
