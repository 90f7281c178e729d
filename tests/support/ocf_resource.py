"""A resource on a node with a scripted broker and scripted cluster tools, for stories about the agent."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from qpid_ha_agent.ocf.codes import OcfCode
from qpid_ha_agent.ocf.main import run_action
from qpid_ha_agent.ocf.memory import DIRECTORY_VARIABLE, MemoryFile
from scripted_broker import ScriptedBroker
from scripted_pacemaker import NODE, ScriptedPacemaker

KEPT = 128
"""So much of a sentence does Pacemaker keep."""
BACKUP = {"name": NODE, "state": "ready", "generation": 3, "epoch": 7, "lsn": 100, "primary": "n2", "min_in_sync": 1}
IN_SYNC = BACKUP | {"members": [NODE, "n2"]}
LOST = IN_SYNC | {"state": "connecting", "primary": ""}
PRIMARY = IN_SYNC | {"state": "primary", "primary": NODE}


class Outcome(NamedTuple):
    code: OcfCode
    reason: str
    log: str


class Resource:
    """One resource on this node; `do` is what Pacemaker does."""

    def __init__(self, broker: ScriptedBroker, pacemaker: ScriptedPacemaker, capfd: pytest.CaptureFixture[str]) -> None:
        self.broker = broker
        self.pacemaker = pacemaker
        self._capfd = capfd
        self.memory = MemoryFile("broker", broker.directory / "state")
        self.environment = {
            "OCF_RESOURCE_INSTANCE": "broker",
            "OCF_RESKEY_CRM_meta_timeout": "20000",
            "OCF_RESKEY_CRM_meta_interval": "10000",
            "OCF_RESKEY_CRM_meta_on_node": NODE,
            DIRECTORY_VARIABLE: str(self.memory.directory),
        }
        user = pwd.getpwuid(os.geteuid()).pw_name
        self.set(config=broker.config, binary=broker.program, log_file=broker.log_file, user=user)
        self.set(watch="false", action_server="false")

    def set(self, **parameters: object) -> None:
        self.environment |= {f"OCF_RESKEY_{name}": str(value) for name, value in parameters.items()}

    def do(self, action: str, **meta: str) -> Outcome:
        """`meta` is what Pacemaker adds, without its prefix; CHECK_LEVEL is one of its own."""
        self._capfd.readouterr()
        more = {
            "OCF_CHECK_LEVEL" if name == "CHECK_LEVEL" else f"OCF_RESKEY_CRM_meta_{name}": text
            for name, text in meta.items()
        }
        code = run_action(action, self.environment | more)
        log = self._capfd.readouterr().err
        reasons = [line for line in log.splitlines() if line.startswith("ocf-exit-reason:")]
        assert len(reasons) <= 1, log
        return Outcome(code, reasons[0].partition(":")[2] if reasons else "", log)

    def promote(self, *nodes: str, **meta: str) -> Outcome:
        """With `nodes` active."""
        return self.do("promote", notify_active_uname=" ".join(nodes), **meta)

    def up(self, **status: object) -> None:
        """It runs, and says `status` of itself."""
        self.broker.says(**status)
        assert self.do("start").code is OcfCode.SUCCESS
        self.pacemaker.forget_calls()


@contextmanager
def resource_here(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Resource]:
    """One whose broker and tools live in `directory` as long as the context lasts."""
    pacemaker = ScriptedPacemaker(directory, "broker")
    monkeypatch.setenv("PATH", pacemaker.path)
    with ScriptedBroker() as broker:
        yield Resource(broker, pacemaker, capfd)


def says_first(outcome: Outcome, *words: str) -> bool:
    """Within what Pacemaker keeps of a sentence."""
    return all(word in outcome.reason[:KEPT] for word in words)
