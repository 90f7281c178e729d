"""Stories about the sentence that crm_mon shows when nobody can be promoted."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from qpid_ha_agent.ocf.memory import MemoryFile
from qpid_ha_agent.pacemaker.attributes import ClusterAttributes
from qpid_ha_agent.pacemaker.election import NEVER
from qpid_ha_agent.pacemaker.hindrance import LOADING, TOLD_AFTER_S, Hindrance
from qpid_ha_agent.sight import Life, Sight
from qpid_ha_broker.ha.cluster_record import ClusterRecord

RECORD = ClusterRecord("c", 2, "n2", 6, ("n1", "n2"))


class Notes(ClusterAttributes):
    """Writes down what Pacemaker would be told."""

    def __init__(self) -> None:
        super().__init__("broker", "n1")
        self.told: list[str] = []

    def explain(self, text: str) -> None:
        """One more."""
        self.told.append(text)


class Node:
    """A broker, a score, and time that passes when it is told to."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.notes = Notes()
        self.now_s = 1000.0
        self.record: ClusterRecord | None = RECORD
        self.generation = 0
        self._memory = MemoryFile("broker", directory)
        self._hindrance = Hindrance(self.notes, self._memory, lambda: self.record)
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)

    def refuse(self, why: str) -> None:
        """It was to be promoted, and would not."""
        with self._memory.changed() as memory:
            memory.refusal = why

    def monitor(
        self, score: str, *, primary: str = "", lsn: int = 0, after_s: float = 11.0, state: str = "connecting",
        problem: str | None = None,
    ) -> list[str]:  # fmt: skip
        """What is told in this one."""
        self.now_s += after_s
        del self.notes.told[:]
        with self._memory.changed() as memory:
            memory.score = score
        status: dict[str, object] = {"name": "n1", "state": state, "primary": primary, "lsn": lsn}
        status |= {"generation": self.generation, "login_problem": problem}
        self._hindrance.refresh(Sight(Life.ANSWERS, "it answered", status))
        return self.notes.told


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Of a cluster whose generation 2 was confirmed by n1 and n2."""
    return Node(tmp_path, monkeypatch)


def test_an_empty_broker_says_who_has_the_data_once_and_until_it_is_over(node: Node) -> None:
    assert node.monitor(NEVER) == []
    (said,) = node.monitor(NEVER)
    assert said.startswith("this broker came back empty; generation 2 was confirmed by n1, n2: start those, or")
    assert node.monitor(NEVER) == []
    assert node.monitor("500", primary="n2") == [""]
    assert node.monitor("500", primary="n2") == []


def test_a_broker_that_refused_says_why_until_there_is_a_primary(node: Node) -> None:
    why = "this store was not closed in order, and n3 of the last in-sync set cannot be asked"
    node.refuse(why)
    assert node.monitor(NEVER, lsn=5) == [why]
    assert node.monitor("200", lsn=5) == []
    assert node.monitor("500", primary="n2", lsn=5) == [""]
    assert node.monitor("200", lsn=5) == []


def test_a_broker_that_is_not_let_in_says_so_whatever_its_score_until_it_is(node: Node) -> None:
    problem = "cannot log in to the broker at amqp://n2:5672: amqp:unauthorized-access: Authentication failed"
    assert node.monitor("100", lsn=5, problem=problem) == []
    assert node.monitor("100", lsn=5, problem=problem) == [problem]
    assert node.monitor("100", lsn=5, problem=problem) == []
    assert node.monitor("500", primary="n2", lsn=5) == [""]


def test_one_that_finds_its_primary_soon_says_nothing(node: Node) -> None:
    assert node.monitor(NEVER) == []
    assert node.monitor(NEVER, after_s=TOLD_AFTER_S / 2) == []
    assert node.monitor(NEVER, primary="n2") == []
    assert node.monitor(NEVER) == []


def test_one_that_is_behind_is_not_called_empty(node: Node) -> None:
    node.monitor(NEVER, lsn=5)
    assert node.monitor(NEVER, lsn=5)[0].startswith("this broker lacks some of what was confirmed; generation 2")


def test_a_record_that_cannot_be_read_is_part_of_the_answer(node: Node) -> None:
    node.record = None
    node.monitor(NEVER)
    assert "cannot be read" in node.monitor(NEVER)[0]


def test_a_broker_that_loads_its_store_says_so_and_nothing_of_what_it_lacks(node: Node) -> None:
    node.record = None
    assert node.monitor(NEVER, state="loading") == []
    assert node.monitor(NEVER, state="loading") == [LOADING]
    assert node.monitor(NEVER, state="loading") == [], "one word for all of it"
    assert node.monitor("200", lsn=5) == [""]


def test_a_record_that_was_lost_is_named_with_the_command(node: Node) -> None:
    node.record = ClusterRecord()
    node.generation = 3
    told = [text for after_s in (0.0, TOLD_AFTER_S) for text in node.monitor(NEVER, lsn=10, after_s=after_s)]

    assert told == [
        "the coordinator's record is empty, and this broker knows generation 3: it was lost or put back from a copy;"
        " run qpid-ha-agent force-promote on the node that is furthest"
    ]
