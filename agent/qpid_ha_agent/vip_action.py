"""The virtual IP as the actions use it: nothing when none is configured, else up with the primary and down without."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

    def bring_up(self) -> None:
        """Here, and not elsewhere. Raises VirtualIpProblem."""
        address = self._address()
        if address is None:
            return
        from qpid_ha_agent import vip

        try:
            if not vip.is_up(address):
                other = vip.answers_elsewhere(address, PROBE_S)
                if other is not None:
                    raise VirtualIpProblem(
                        f"the virtual IP {self._text} is in use by another machine ({other}): take it down there"
                    )
            vip.bring_up(address)
        except vip.AddressProblem as problem:
            raise VirtualIpProblem(str(problem)) from None

    def announce(self) -> None:
        """Tell the neighbours that it is here now; what they do not hear, they find out by asking."""
        address = self._address()
        if address is not None:
            from qpid_ha_agent import vip

            vip.announce(address)

    def repair(self) -> bool:
        """Whether it was gone, and is back. Raises VirtualIpProblem."""
        address = self._address()
        if address is None:
            return False
        from qpid_ha_agent import vip

        if vip.is_up(address):
            return False
        self.bring_up()
        self.announce()
        return True

    def take_down(self) -> None:
        """Not here. Raises VirtualIpProblem."""
        try:
            address = self._address()
        except VirtualIpProblem:
            return  # what is no address never came up
        if address is None:
            return
        from qpid_ha_agent import vip

        try:
            if vip.is_up(address):
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
