"""The virtual IP as the actions use it: nothing when none is configured, else up with the primary and down without."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from qpid_ha_agent.vip import VirtualAddress

PROBE_S = 0.1
MONITOR_PROBE_S = 0.02
"""A neighbour on an idle network answers in less than 1 ms, and the next monitor asks again."""


class VirtualIpProblem(Exception):
    """The address is not up here; the text says why, and what to do."""


class VirtualIpInUse(VirtualIpProblem):
    """Another machine answers for it. To have another primary would change nothing about that."""


class VirtualIp:
    """The promise: it is never brought up while another machine answers for it.

    `vip` is imported only where there is an address: a monitor runs every few seconds, on every node.
    """

    def __init__(self, text: str, nic: str) -> None:
        self._text = text
        self._nic = nic
        self._probe: Future[str | None] | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether one is configured."""
        return bool(self._text)

    def prepare(self, was_free: Callable[[], bool] = lambda: False) -> None:
        """Begin to find out whether it may come up: that is mostly waiting, and others have work to do meanwhile.

        `was_free` says that nobody answered a moment ago, which need not be asked again.
        """
        address = self._address()
        if address is not None and self._probe is None:
            from concurrent.futures import ThreadPoolExecutor  # takes longer to import than a monitor may

            executor = ThreadPoolExecutor(max_workers=2)
            self._probe = executor.submit(lambda: None if was_free() else _answers_elsewhere(address))
            executor.submit(_import_slowly)
            executor.shutdown(wait=False)

    def answers_nowhere(self) -> bool:
        """Nobody else has it. Raises VirtualIpProblem, and what `vip` raises."""
        address = self._address()
        return address is not None and _answers_elsewhere(address) is None

    def bring_up(self) -> None:
        """Here, and not elsewhere. Raises VirtualIpProblem."""
        address = self._address()
        if address is None:
            return
        from qpid_ha_agent import vip

        self.prepare()
        probe, self._probe = self._probe, None
        try:
            other = probe.result() if probe is not None else None
            if other is not None:
                raise self._in_use(other)
            vip.bring_up(address)
        except vip.AddressProblem as problem:
            raise VirtualIpProblem(str(problem)) from None

    def announce(self, count: int = 3) -> None:
        """Tell the neighbours `count` times that it is here now; what they do not hear, they find out by asking.

        Raises VirtualIpProblem.
        """
        address = self._address()
        if address is None:
            return
        from qpid_ha_agent import vip

        try:
            vip.announce(address, count)
        except vip.AddressProblem as problem:
            raise VirtualIpProblem(str(problem)) from None

    def repair(self, leads: Callable[[], bool | None]) -> str | None:
        """What was done, for the log; None: it was here, and here only, and that was announced again.

        Once is not enough: whoever was cut off when it moved goes on to send to where it was, for half a minute and
        longer. When another machine answers for it as well, who is primary by the record keeps it: `leads` says so
        (None: the record cannot be read), and is asked only then. Raises VirtualIpProblem.
        """
        address = self._address()
        if address is None:
            return None
        from qpid_ha_agent import vip

        try:
            wrong = vip.what_is_wrong(address)
            if not wrong and not vip.has_neighbours(address):
                return None  # a cable that is out is other agents' business
            other = None if wrong else vip.answers_elsewhere(address, MONITOR_PROBE_S)
        except vip.AddressProblem as problem:
            raise VirtualIpProblem(str(problem)) from None
        if wrong:
            self.bring_up()
            self.announce()
            return f"{wrong}: it is put right"
        if other is None:
            self.announce(count=1)
            return None
        leading = leads()
        if leading is False:
            self.take_down()
            raise VirtualIpProblem(
                f"another machine ({other}) has the virtual IP {self._text}, and the record names another primary:"
                " it is taken down here"
            )
        if leading:
            self.announce(count=1)
        raise self._in_use(other)

    def _in_use(self, other: str) -> VirtualIpInUse:
        return VirtualIpInUse(f"the virtual IP {self._text} is in use by another machine ({other}): take it down there")

    def take_down(self) -> None:
        """Not here, on no interface. Raises VirtualIpProblem."""
        try:
            address = self._address()
        except VirtualIpProblem:
            return  # what is no address never came up
        if address is None:
            return
        from qpid_ha_agent import vip

        try:
            vip.take_down(address)
        except vip.AddressProblem as problem:
            raise VirtualIpProblem(str(problem)) from None

    def _address(self) -> VirtualAddress | None:
        if not self._text:
            return None
        from qpid_ha_agent.vip import read_address

        try:
            return read_address(self._text, self._nic)
        except ValueError as error:
            raise VirtualIpProblem(f"virtual_ip: {error}") from None


def _answers_elsewhere(address: VirtualAddress) -> str | None:
    """Nobody's, when it is here already: then it is no news that somebody answers."""
    from qpid_ha_agent import vip

    return None if vip.is_up(address) else vip.answers_elsewhere(address, PROBE_S)


def _import_slowly() -> None:
    """The library that changes addresses takes longer to load than to use; `vip` finds it loaded."""
    import pyroute2  # noqa: F401
