"""Which addresses and interfaces this machine has, from the kernel, in well under a millisecond.

A monitor asks this every few seconds, so it must not cost what a netlink library costs to import: one request of a
few bytes is packed here by hand. What changes anything goes through the library.
Shapes: rtnetlink(7), netdevice(7), <linux/rtnetlink.h>, <linux/if_addr.h>.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_interface
from typing import NamedTuple

_MESSAGE = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ADDRESS = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface
_ROUTE = struct.Struct("=BBBBBBBBI")  # family, destination length, ..., type at 7, flags
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_REQUEST, _DUMP, _INTERRUPTED = 0x1, 0x300, 0x10
_ERROR, _DONE = 2, 3
_GET_ADDRESSES, _GET_ROUTE = 22, 26
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_DESTINATION, _RTA_INTERFACE, _RTA_GATEWAY, _RTA_VIA = 1, 4, 5, 18
_UNICAST = 1
_BUFFER_BYTES = 1 << 16
_ATTEMPTS = 5

_SECONDARY, _DAD_FAILED, _TENTATIVE, _PERMANENT = 0x01, 0x08, 0x40, 0x80
_GET_FLAGS, _GET_HARDWARE_ADDRESS = 0x8913, 0x8927
_UP, _RUNNING, _NO_ARP = 0x1, 0x40, 0x80
_ETHERNET = 1

Interface = IPv4Interface | IPv6Interface
Address = IPv4Address | IPv6Address


class LocalAddress(NamedTuple):
    """One address on one interface. `flags` are the first eight IFA_F_* of <linux/if_addr.h>."""

    interface: Interface
    nic: str
    nic_index: int
    flags: int

    @property
    def is_secondary(self) -> bool:
        """IPv4: another address of the same network came first; it may take this one along when it goes."""
        return bool(self.flags & _SECONDARY)

    @property
    def is_unconfirmed(self) -> bool:
        """IPv6: the kernel still asks, or has found out, whether another host has it; it accepts nothing for it."""
        return bool(self.flags & (_TENTATIVE | _DAD_FAILED))

    @property
    def is_permanent(self) -> bool:
        """Whether the address does not expire."""
        return bool(self.flags & _PERMANENT)


class NetworkInterface(NamedTuple):
    """An interface as it is now. `mac` is empty where frames have no Ethernet addresses, or nobody asks for any."""

    nic: str
    is_up: bool
    has_carrier: bool
    mac: bytes


def held_addresses(version: int) -> list[LocalAddress]:
    """All addresses of IP version 4 or 6 on all interfaces. Raises OSError."""
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    for _ in range(_ATTEMPTS):
        # A list that changed while it was read can lack what was there all the time: read it again.
        with suppress(InterruptedError):
            messages = list(_ask(_GET_ADDRESSES, _DUMP, _ADDRESS.pack(family, 0, 0, 0, 0)))
            return [address for body in messages for address in _local_address(body)]
    raise OSError(f"the addresses of this machine changed {_ATTEMPTS} times while they were read")


def direct_route_nic(address: Address) -> str:
    """The interface through which `address` is reached without a gateway; empty when there is none, or it is ours."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    wanted = _ROUTE.pack(family, address.max_prefixlen, 0, 0, 0, 0, 0, 0, 0)
    wanted += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(address.packed), _RTA_DESTINATION) + address.packed
    try:
        for body in _ask(_GET_ROUTE, 0, wanted):
            attributes = _attributes(body[_ROUTE.size :])
            direct = body[7] == _UNICAST and not attributes.keys() & {_RTA_GATEWAY, _RTA_VIA}
            return _nic_name(int.from_bytes(attributes[_RTA_INTERFACE], sys.byteorder)) if direct else ""
    except OSError:
        return ""  # this is how the kernel says that there is no route
    return ""


def link(nic: str) -> NetworkInterface:
    """Raises OSError when there is no such interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        flags = int.from_bytes(_interface_fact(asking, nic, _GET_FLAGS)[:2], sys.byteorder)
        kind, mac = _hardware_address(asking, nic)
    speaks_ethernet = kind == _ETHERNET and not flags & _NO_ARP
    return NetworkInterface(nic, bool(flags & _UP), bool(flags & _RUNNING), mac if speaks_ethernet else b"")


def own_macs() -> frozenset[bytes]:
    """Of every interface of this machine."""
    macs = set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, nic in socket.if_nameindex():
            with suppress(OSError):  # it went away meanwhile
                macs.add(_hardware_address(asking, nic)[1])
    return frozenset(macs)


def _hardware_address(asking: socket.socket, nic: str) -> tuple[int, bytes]:
    raw = _interface_fact(asking, nic, _GET_HARDWARE_ADDRESS)
    return int.from_bytes(raw[:2], sys.byteorder), raw[2:8]


def _interface_fact(asking: socket.socket, nic: str, request: int) -> bytes:
    return fcntl.ioctl(asking, request, struct.pack("16s24x", os.fsencode(nic)))[16:]


def _nic_name(index: int) -> str:
    try:
        return socket.if_indextoname(index)
    except OSError:
        return ""


# --- rtnetlink


def _ask(kind: int, flags: int, body: bytes) -> Iterator[bytes]:
    """The bodies of the kernel's answer. Raises OSError, InterruptedError when a list changed while it was read."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.sendto(_MESSAGE.pack(_MESSAGE.size + len(body), kind, _REQUEST | flags, 1, 0) + body, (0, 0))
        while True:
            for answer, answer_flags, answer_body in _messages(kernel.recv(_BUFFER_BYTES)):
                if answer == _ERROR:
                    code = -int.from_bytes(answer_body[:4], sys.byteorder, signed=True)
                    raise OSError(code, os.strerror(code))
                if answer_flags & _INTERRUPTED:
                    raise InterruptedError
                if answer == _DONE:
                    return
                yield answer_body
            if not flags & _DUMP:
                return


def _messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at + _MESSAGE.size <= len(data):
        length, kind, flags, _, _ = _MESSAGE.unpack_from(data, at)
        yield kind, flags, data[at + _MESSAGE.size : at + length]
        at += max(_padded(length), _MESSAGE.size)


def _attributes(data: bytes) -> dict[int, bytes]:
    attributes, at = {}, 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        attributes[kind] = data[at + _ATTRIBUTE.size : at + length]
        at += max(_padded(length), _ATTRIBUTE.size)
    return attributes


def _padded(length: int) -> int:
    return (length + 3) & ~3


def _local_address(body: bytes) -> Iterator[LocalAddress]:
    """Nothing for an interface that went away meanwhile."""
    _, prefix, flags, _, index = _ADDRESS.unpack_from(body)
    attributes = _attributes(body[_ADDRESS.size :])
    nic = _nic_name(index)
    packed = attributes.get(_IFA_LOCAL, attributes.get(_IFA_ADDRESS))  # on a point-to-point link ADDRESS is the peer's
    if nic and packed:
        yield LocalAddress(ip_interface((packed, prefix)), nic, index, flags)
