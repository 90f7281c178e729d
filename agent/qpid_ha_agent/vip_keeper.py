"""The virtual IP of `qpid-ha-agent run`: on this machine while its broker is primary, and only then."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from qpid_ha_agent.vip_action import VirtualIp, VirtualIpProblem

log = logging.getLogger("agent")

LOOK_S: Final = 5.0
"""How often to see that it is where it belongs."""
RETRY_S: Final = 0.5
"""Whoever had it takes it down within moments."""
CLOSE_TIMEOUT_S: Final = 3.0
INTERFACE_SETTING: Final = "the interface of ha.virtual-ip (ADDRESS/PREFIX@INTERFACE)"
"""What the resource agent has a parameter of its own for, which its messages name."""
QUIET_TIMES: Final = 60
"""So often, the same problem is not said again."""


def in_words_of_settings(problem: str) -> str:
    """What is wrong with an address, for those who have written it into a configuration file."""
    return problem.replace("virtual_ip_nic", INTERFACE_SETTING)


class VirtualIpKeeper:
    """The promise: it is brought up only after `want(True)`, and never while another machine answers for it.

    All work is done by one thread, because it takes a while to ask the neighbours. `leads`: whether the record names
    our broker, which settles who keeps it where two have it; None: nobody knows.
    """

    def __init__(self, virtual_ip: tuple[str, str] | None, leads: Callable[[], bool | None]) -> None:
        self._leads = leads
        self._text = "" if virtual_ip is None else virtual_ip[0]
        self._address = VirtualIp(*virtual_ip) if virtual_ip is not None else None
        self._wanted: bool | None = None
        """None: not known yet, so it stays as it is."""
        self._is_up = False
        self._is_closing = False
        self._due = threading.Event()
        self._thread: threading.Thread | None = None
        self._problem, self._problem_times = "", 0

    def want(self, is_up: bool) -> None:
        """Whether the address shall be here; it will be in a moment."""
        if self._address is None or self._wanted is is_up:
            return
        self._wanted = is_up
        self._due.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="virtual-ip", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Do what is to be done, and no more; an address that is wanted stays for the next agent."""
        self._is_closing = True
        self._due.set()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)

    def _keep(self) -> None:
        import pyroute2  # noqa: F401  # takes longer to load than to use, and by then it is urgent

        while True:
            self._due.clear()
            is_closing = self._is_closing
            wait_s = self._look()
            if is_closing:
                return
            self._due.wait(wait_s)

    def _look(self) -> float:
        """Have it as it shall be; how long to wait before the next look."""
        if self._address is None:
            return LOOK_S
        try:
            self._put_right(self._address)
        except VirtualIpProblem as problem:
            self._is_up = False
            self._complain(str(problem))
            return RETRY_S
        self._problem = ""
        return LOOK_S

    def _put_right(self, address: VirtualIp) -> None:
        """Raises VirtualIpProblem."""
        if not self._wanted:
            address.take_down()
            if self._is_up:
                log.info("the virtual IP %s is taken down", self._text)
            self._is_up = False
        elif not self._is_up:
            address.bring_up()
            self._is_up = True
            log.info("the virtual IP %s is up", self._text)
            address.announce()
        elif repaired := address.repair(self._leads):
            log.warning("%s", repaired)

    def _complain(self, problem: str) -> None:
        """One that lasts is said now and then."""
        self._problem_times = self._problem_times + 1 if problem == self._problem else 0
        if self._problem_times % QUIET_TIMES == 0:
            log.error("%s", in_words_of_settings(problem))
        self._problem = problem
