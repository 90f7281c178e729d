"""What is said on an Ethernet about who has an IP address: bytes in, bytes out.

ARP: RFC 826, probes and announcements RFC 5227. Neighbour discovery: RFC 4861, duplicate address detection RFC 4862.
All frames here are without their Ethernet header; the kernel puts it in front.
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

BROADCAST = b"\xff" * 6
ALL_NODES = IPv6Address("ff02::1")
ADVERTISEMENT = 136
HOP_LIMIT = 255  # a router would have made it less: only a neighbour can have sent it

_REQUEST, _REPLY = 1, 2
_ARP = struct.Struct("!HHBBH6s4s6s4s")
_ETHERNET_IPV4 = (1, 0x0800, 6, 4)
_NOBODY = b"\x00" * 6

_SOLICITATION = 135
_ICMPV6 = 58
_IPV6 = struct.Struct("!IHBB16s16s")
_MESSAGE = struct.Struct("!BBHI16s")  # type, code, checksum, flags, target
_TARGET_MAC = 2
_OVERRIDE = 0x20000000


class Claim(NamedTuple):
    """`mac` says that it has `address`."""

    address: IPv4Address | IPv6Address
    mac: bytes


# --- IPv4


def arp_probe(mac: bytes, address: IPv4Address) -> bytes:
    """Who has it? From nobody's address, so that no neighbour learns anything wrong from the question."""
    return _ARP.pack(*_ETHERNET_IPV4, _REQUEST, mac, IPv4Address(0).packed, _NOBODY, address.packed)


def arp_announcements(mac: bytes, address: IPv4Address) -> tuple[bytes, bytes]:
    """I have it: as a request, as RFC 5227 wants it, and as a reply. There are hosts that believe only one of them."""
    request = _ARP.pack(*_ETHERNET_IPV4, _REQUEST, mac, address.packed, _NOBODY, address.packed)
    reply = _ARP.pack(*_ETHERNET_IPV4, _REPLY, mac, address.packed, BROADCAST, address.packed)
    return request, reply


def read_arp(frame: bytes) -> Claim | None:
    """What its sender claims to have. None for a probe, which claims nothing, and for what is not ARP for IPv4."""
    if len(frame) < _ARP.size:
        return None
    *kind, operation, mac, sender, _, _ = _ARP.unpack_from(frame)
    if tuple(kind) != _ETHERNET_IPV4 or operation not in (_REQUEST, _REPLY) or not any(sender):
        return None
    return Claim(IPv4Address(sender), mac)


# --- IPv6


def solicitation(address: IPv6Address) -> tuple[IPv6Address, bytes]:
    """Who has it? To whom, and the packet; from nobody's address, as for duplicate address detection."""
    group = IPv6Address(IPv6Address("ff02::1:ff00:0").packed[:13] + address.packed[13:])
    message = _MESSAGE.pack(_SOLICITATION, 0, 0, 0, address.packed)
    return group, _packet(IPv6Address(0), group, message)


def advertisement(mac: bytes, address: IPv6Address) -> bytes:
    """I have it, whatever you knew before: unsolicited, with the override flag, for all nodes."""
    message = _MESSAGE.pack(ADVERTISEMENT, 0, 0, _OVERRIDE, address.packed)
    return _packet(address, ALL_NODES, message + bytes((_TARGET_MAC, 1)) + mac)


def read_advertisement(message: bytes) -> Claim | None:
    """What an ICMPv6 message, whose checksum the kernel has tested, claims. None if it is something else, or broken.

    `mac` is empty when it is not said; the answer to a solicitation from nobody's address must say it.
    """
    if len(message) < _MESSAGE.size:
        return None
    kind, code, _, _, target = _MESSAGE.unpack_from(message)
    if kind != ADVERTISEMENT or code:
        return None
    mac, at = b"", _MESSAGE.size
    while at + 2 <= len(message):
        option, length = message[at], message[at + 1] * 8
        if not length:
            return None
        if option == _TARGET_MAC:
            mac = message[at + 2 : at + 8]
        at += length
    return Claim(IPv6Address(target), mac)


def group_mac(group: IPv6Address) -> bytes:
    """Where Ethernet sends what is for a multicast group. RFC 2464, section 7."""
    return b"\x33\x33" + group.packed[12:]


def _packet(source: IPv6Address, destination: IPv6Address, message: bytes) -> bytes:
    """The message with its checksum, behind an IPv6 header."""
    pseudo_header = struct.pack("!16s16sII", source.packed, destination.packed, len(message), _ICMPV6)
    checksum = _checksum(pseudo_header + message)
    header = _IPV6.pack(6 << 28, len(message), _ICMPV6, HOP_LIMIT, source.packed, destination.packed)
    return header + message[:2] + checksum.to_bytes(2, "big") + message[4:]


def _checksum(data: bytes) -> int:
    """The complement of the ones' complement sum, RFC 1071. All that is summed here has an even length."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF
