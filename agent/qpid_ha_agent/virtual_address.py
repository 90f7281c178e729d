"""A virtual IP as it is configured, and the interface of this machine where it belongs."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface, ip_interface

from qpid_ha_agent.local_addresses import LocalAddress, NetworkInterface, direct_route_nic, held_addresses, link

LOOPBACK = "lo"

_TEXT = re.compile(r"[0-9A-Fa-f.:]+/[0-9]{1,3}", re.ASCII)
_NIC = re.compile(r"[^\s/:]{0,15}")


class AddressProblem(Exception):
    """The address cannot be looked at, taken or given away; the text says why, and what to set."""


@dataclass(frozen=True, slots=True)
class VirtualAddress:
    """An address with the length of its network's prefix. `nic` is empty for the interface whose network holds it."""

    interface: IPv4Interface | IPv6Interface
    nic: str = ""

    def __str__(self) -> str:
        return str(self.interface.ip)


def read_address(text: str, nic: str = "") -> VirtualAddress:
    """The address from ADDRESS/PREFIX. Raises ValueError, whose text says what to write."""
    text, nic = text.strip(), nic.strip()
    if not _TEXT.fullmatch(text):
        example = "write 192.168.1.100/24 or 2001:db8::100/64; an interface has its place in virtual_ip_nic"
        raise ValueError(f"{text!r} is not ADDRESS/PREFIX: {example}")
    try:
        interface = ip_interface(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not ADDRESS/PREFIX: {error}") from None
    if not _NIC.fullmatch(nic):
        raise ValueError(f"{nic!r} is not the name of an interface: write virtual_ip_nic as `ip link` does, as eth0")
    if reason := _why_unusable(interface, nic):
        raise ValueError(f"{text}: {reason}")
    return VirtualAddress(interface, nic)


def addresses_here(address: VirtualAddress) -> list[LocalAddress]:
    """All that this machine has of that IP version. Raises AddressProblem."""
    with told_as_problems(address, address.nic):
        return held_addresses(address.interface.version)


def places_of(address: VirtualAddress, here: Sequence[LocalAddress]) -> list[LocalAddress]:
    """Where it is, whatever its prefix."""
    return [place for place in here if place.interface.ip == address.interface.ip]


def nics_of_network(address: VirtualAddress, here: Sequence[LocalAddress]) -> list[str]:
    """The interfaces whose own addresses are in the smallest network that holds it. Its own presence proves nothing."""
    ip = address.interface.ip
    others = [other for other in here if other.interface.ip != ip and ip in other.interface.network]
    longest = max((other.interface.network.prefixlen for other in others), default=0)
    return sorted({other.nic for other in others if other.interface.network.prefixlen == longest})


def ready_link(address: VirtualAddress, here: Sequence[LocalAddress]) -> NetworkInterface:
    """The link where it belongs. Raises AddressProblem when there is none, or it cannot carry anything.

    An interface that is down was put down by somebody: it is not ours to put up.
    """
    nic = _wanted_nic(address, here)
    with told_as_problems(address, nic):
        nic_link = link(nic)
    if not nic_link.is_up:
        raise AddressProblem(f"{nic}, where {address} belongs, is down: `ip link set {nic} up`, or set virtual_ip_nic")
    if not nic_link.has_carrier:
        raise AddressProblem(f"{nic}, where {address} belongs, has no carrier: look at its cable and its switch")
    return nic_link


@contextmanager
def told_as_problems(address: VirtualAddress, nic: str, capability: str = "") -> Iterator[None]:
    """The boundary at which what the kernel refuses becomes a sentence for an operator."""
    try:
        yield
    except OSError as error:
        where = f"{address} on {nic}" if nic else str(address)
        if error.errno == errno.EPERM and capability:
            raise AddressProblem(f"{where}: not permitted; run as root, or with {capability}") from error
        if error.errno in (errno.ENODEV, errno.ENXIO) and nic:
            raise AddressProblem(f"there is no interface {nic}: set virtual_ip_nic to {_listed_nics()}") from error
        if error.errno == errno.EACCES and address.interface.version == 6:
            raise AddressProblem(f"{where}: IPv6 is off; set net.ipv6.conf.{nic}.disable_ipv6 to 0") from error
        raise AddressProblem(f"{where}: {error.strerror or error}") from error


def _why_unusable(interface: IPv4Interface | IPv6Interface, nic: str) -> str:
    ip, network = interface.ip, interface.network
    if ip.is_unspecified or ip.is_multicast or ip.is_loopback or (ip.version == 4 and ip.is_reserved):
        return "no network can reach a host at such an address"
    if not network.prefixlen:
        return f"a prefix of 0 would make every address a neighbour: write that of its network, as {ip}/24"
    if ip.version == 4 and network.prefixlen < 31 and ip in (network.network_address, network.broadcast_address):
        return f"it is the {'network' if ip == network.network_address else 'broadcast address'} itself, not a host"
    if isinstance(interface, IPv6Interface) and interface.ip.ipv4_mapped:
        return f"write the IPv4 address, {interface.ip.ipv4_mapped}"
    if ip.version == 6 and ip.is_link_local and not nic:
        return "every interface has a network of link-local addresses: say which with virtual_ip_nic"
    return ""


def _wanted_nic(address: VirtualAddress, here: Sequence[LocalAddress]) -> str:
    if address.nic:
        return address.nic
    nics = nics_of_network(address, here)
    if len(nics) > 1:
        raise AddressProblem(f"{address} is in the network of {' and of '.join(nics)}: say which with virtual_ip_nic")
    # Once it is ours there is no route to it any more: it may stay where a route had put it.
    routes = [direct_route_nic(address.interface.ip), *(place.nic for place in places_of(address, here))]
    for nic in nics or routes:
        if nic and nic != LOOPBACK:
            return nic
    raise AddressProblem(f"no interface has a network that holds {address}: set virtual_ip_nic to {_listed_nics()}")


def _listed_nics() -> str:
    return " or ".join(sorted(nic for _, nic in socket.if_nameindex() if nic != LOOPBACK)) or "an interface"
