"""The virtual IP as the actions use it: nothing when none is configured, else up with the primary and down without."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Future

    from qpid_ha_agent.vip import VirtualAddress

PROBE_S = 0.1


class VirtualIpProblem(Exception):
    """The address is not up here; the text says why, and what to do."""


class VirtualIp:
    """The promise: it is never brought up while another machine answers for it.

    `vip` is imported only where there is an address: a monitor runs every few seconds, on every node.
    """

    def __init__(self, text: str, nic: str) -> None:
        self._text = text
        self._nic = nic
        self._probe: Future[str | None] | None = None

    def prepare(self) -> None:
        """Begin to find out whether it may come up: that is mostly waiting, and others have work to do meanwhile."""
        address = self._address()
        if address is not None and self._probe is None:
            from concurrent.futures import ThreadPoolExecutor  # takes longer to import than a monitor may

            executor = ThreadPoolExecutor(max_workers=2)
            self._probe = executor.submit(_answers_elsewhere, address)
            executor.submit(_import_slowly)
            executor.shutdown(wait=False)

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
                raise VirtualIpProblem(
                    f"the virtual IP {self._text} is in use by another machine ({other}): take it down there"
                )
            vip.bring_up(address)
        except vip.AddressProblem as problem:
            raise VirtualIpProblem(str(problem)) from None

    def announce(self) -> None:
        """Tell the neighbours that it is here now; what they do not hear, they find out by asking.

        Raises VirtualIpProblem.
        """
        address = self._address()
        if address is None:
            return
        from qpid_ha_agent import vip

        try:
            vip.announce(address)
        except vip.AddressProblem as problem:
            raise VirtualIpProblem(str(problem)) from None

    def repair(self) -> bool:
        """Whether it was gone, and is back. Raises VirtualIpProblem."""
        address = self._address()
        if address is None:
            return False
        from qpid_ha_agent import vip

        try:
            if vip.is_up(address):
                return False
        except vip.AddressProblem as problem:
            raise VirtualIpProblem(str(problem)) from None
        self.bring_up()
        self.announce()
        return True

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
