"""What answers of kazoo, the client of ZooKeeper, mean to whoever asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, NoNodeError

from qpid_ha_broker.coordination.zookeeper_session import LostAnswer, ZooKeeperSession, _bugs_only, deadline
from qpid_ha_config.coordinator import CoordinatorUrl
from qpid_ha_config.settings import CoordinatorSettings


class Answer:
    """Of a request that was sent: kazoo has put an error into it."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def get(self, timeout: float) -> Any:
        raise self._error


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> ZooKeeperSession:
    monkeypatch.setattr(ZooKeeperSession, "_connected", lambda self, until_s: (SimpleNamespace(), SimpleNamespace()))
    url = CoordinatorUrl.parse("zookeeper://127.0.0.1:2181/cluster")
    return ZooKeeperSession(CoordinatorSettings(url), timeout_s=4.0, patience_s=4.0)


@pytest.mark.parametrize(
    "error", [ConnectionLoss(), RuntimeError("xids do not match, expected 7 received 8"), OSError("broken")],
    ids=["lost", "kazoo's thread died", "anything else"],
)  # fmt: skip
def test_whatever_ends_a_connection_is_no_answer(session: ZooKeeperSession, error: Exception) -> None:
    with pytest.raises(LostAnswer):
        session.ask(deadline(), lambda client: Answer(error))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("xids do not match, expected %r received %r", 7, 8), ("WARNING", False)),
        (RuntimeError("another one"), ("ERROR", True)),
    ],
    ids=["the known fault", "a bug"],
)
def test_a_known_fault_of_kazoo_is_one_line(
    caplog: pytest.LogCaptureFixture, error: RuntimeError, expected: tuple[str, bool]
) -> None:
    logger = _bugs_only()
    try:
        raise error
    except RuntimeError:
        logger.exception("Unhandled exception in connection loop")

    (record,) = caplog.records
    assert (record.levelname, record.exc_info is not None) == expected


def test_that_there_is_no_such_node_is_an_answer(session: ZooKeeperSession) -> None:
    missing = NoNodeError()

    assert session.ask(deadline(), lambda client: Answer(missing)) == [missing]
