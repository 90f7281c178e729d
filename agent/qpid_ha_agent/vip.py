"""The virtual IP: the address at which clients find the primary, wherever it is.

Two machines that have the address are worse than none, so whoever takes it asks the network first whether another
one answers for it; and the neighbours, which remember the machine that had it before, are told.

Everything raises AddressProblem, whose text says what to do. Not to be called from within a running event loop.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from qpid_ha_agent.local_addresses import LocalAddress, link, own_macs
from qpid_ha_agent.neighbour_probe import announce_to_neighbours, first_claim
from qpid_ha_agent.virtual_address import (
    LOOPBACK,
    AddressProblem,
    VirtualAddress,
    addresses_here,
    nics_of_network,
    places_of,
    read_address,
    ready_link,
    told_as_problems,
)

if TYPE_CHECKING:
    from pyroute2 import IPRoute

__all__ = [
    "AddressProblem",
    "VirtualAddress",
    "announce",
    "answers_elsewhere",
    "bring_up",
    "has_neighbours",
    "is_up",
    "read_address",
    "take_down",
    "what_is_wrong",
]

_NO_DAD = 0x02


def is_up(address: VirtualAddress) -> bool:
    """Whether this machine has it where it shall be, and its clients can use it. Cheap: for every monitor."""
    return not what_is_wrong(address)


def what_is_wrong(address: VirtualAddress) -> str:
    """Why `is_up` says no; empty when it says yes.

    A prefix of another length is not wrong enough to move the primary for, nor is a cable that is out: there are
    resource agents for connectivity.
    """
    here = addresses_here(address)
    places = places_of(address, here)
    if not places:
        return f"{address} is on no interface of this machine"
    wanted = [address.nic] if address.nic else nics_of_network(address, here)
    right = [place for place in places if (place.nic in wanted if wanted else place.nic != LOOPBACK)]
    if not right:
        return f"{address} is on {places[0].nic}, not on {' or '.join(wanted) or 'an interface to a network'}"
    nic = right[0].nic
    if astray := [place.nic for place in places if place.nic != nic and place.nic not in wanted]:
        return f"{address} is on {nic}, and on {astray[0]} as well"
    if right[0].is_unconfirmed:
        return f"{address} is on {nic}, but the kernel does not use it: another host may have it"
    with told_as_problems(address, nic):
        return "" if link(nic).is_up else f"{address} is on {nic}, which is down"


def has_neighbours(address: VirtualAddress) -> bool:
    """Whether there is anybody to ask and to tell: a cable is in, where it is."""
    places = places_of(address, addresses_here(address))
    with told_as_problems(address, address.nic):
        return any(link(place.nic).has_carrier for place in places)


def answers_elsewhere(address: VirtualAddress, wait_s: float = 0.1) -> str | None:
    """The MAC address of another host that answers for it; None when none does within `wait_s`.

    A probe that another host sends for it at the same time is no answer: that host does not have it yet.
    """
    ready = ready_link(address, addresses_here(address))
    if not ready.mac:
        return None  # no Ethernet: there is nobody to ask
    with told_as_problems(address, ready.nic, "CAP_NET_RAW"):
        mac = first_claim(ready, address.interface.ip, wait_s, own_macs())
    return None if mac is None else mac.hex(":") or "a MAC address that it does not say"


def bring_up(address: VirtualAddress) -> None:
    """Have it on the right interface with the right prefix, and there only. Ask `answers_elsewhere` before."""
    here = addresses_here(address)
    nic = ready_link(address, here).nic
    places = places_of(address, here)
    on_nic = [place for place in places if place.nic == nic]
    if len(places) == 1 and on_nic and _is_sound(on_nic[0], address):
        return
    with _netlink(address, nic) as kernel:
        _have_on(kernel, address, nic, on_nic, here)
        for place in places:
            if place.nic != nic:
                _remove(kernel, place, here)
    if problem := what_is_wrong(VirtualAddress(address.interface, nic)):
        raise AddressProblem(f"after it was added, {problem}")


def announce(address: VirtualAddress, count: int = 3, pause_s: float = 0.01) -> None:
    """Tell all neighbours that it is here now, so that none sends to where it was; `count` times: one may get lost."""
    if problem := what_is_wrong(address):
        raise AddressProblem(f"cannot announce: {problem}")
    ready = ready_link(address, addresses_here(address))
    if ready.mac:
        with told_as_problems(address, ready.nic, "CAP_NET_RAW"):
            announce_to_neighbours(ready, address.interface.ip, count, pause_s)


def take_down(address: VirtualAddress) -> None:
    """Have it on no interface at all: Linux answers for an address at every interface, wherever it is."""
    here = addresses_here(address)
    places = places_of(address, here)
    if places:
        with _netlink(address, places[0].nic) as kernel:
            for place in places:
                _remove(kernel, place, here)


@contextmanager
def _netlink(address: VirtualAddress, nic: str) -> Iterator[IPRoute]:
    """Imported as late as this: it takes longer than all that a monitor does."""
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    with told_as_problems(address, nic, "CAP_NET_ADMIN"):
        try:
            with IPRoute() as kernel:
                yield kernel
        except NetlinkError as error:
            raise OSError(error.code, os.strerror(error.code)) from error


def _is_sound(place: LocalAddress, address: VirtualAddress) -> bool:
    return place.interface == address.interface and place.is_permanent and not place.is_unconfirmed


def _have_on(
    kernel: IPRoute, address: VirtualAddress, nic: str, there: Sequence[LocalAddress], here: Sequence[LocalAddress]
) -> None:
    """Whatever of it is on `nic` already, in whatever state."""
    wanted = {"index": socket.if_nametoindex(nic), "address": str(address)}
    wanted["prefixlen"] = address.interface.network.prefixlen
    if address.interface.version == 4:
        # One address may be there with several prefixes, so there need not be a moment without.
        kernel.addr("replace", **wanted)
        for place in there:
            if place.interface != address.interface:
                _remove(kernel, place, here)
    elif not any(_is_sound(place, address) for place in there):
        for place in there:
            _remove(kernel, place, here)
        # No duplicate address detection: it takes a second, and we have asked. Deprecated from the start: it takes what
        # comes in, but the broker's own connections to its peers must not come from an address that moves away.
        kernel.addr("add", **wanted, flags=_NO_DAD, preferred_lft=0)


def _remove(kernel: IPRoute, place: LocalAddress, here: Sequence[LocalAddress]) -> None:
    """Nothing when it has gone meanwhile."""
    from pyroute2.netlink.exceptions import NetlinkError

    if not place.is_secondary and any(_goes_with(place, other) for other in here):
        _keep_secondaries(place.nic)
    try:
        kernel.addr(
            "del", index=place.nic_index, address=str(place.interface.ip), prefixlen=place.interface.network.prefixlen
        )
    except NetlinkError as error:
        if error.code not in (errno.EADDRNOTAVAIL, errno.ENODEV):
            raise


def _goes_with(place: LocalAddress, other: LocalAddress) -> bool:
    """When an interface got its own address after this one, IPv4 would remove that together with this one."""
    return other.is_secondary and other.nic == place.nic and other.interface.network == place.interface.network


def _keep_secondaries(nic: str) -> None:
    try:
        Path(f"/proc/sys/net/ipv4/conf/{nic}/promote_secondaries").write_text("1", encoding="ascii")
    except OSError as error:
        what_to_set = f"set net.ipv4.conf.{nic}.promote_secondaries to 1 ({error.strerror})"
        raise AddressProblem(f"{nic} would lose its own address with the virtual one: {what_to_set}") from None
