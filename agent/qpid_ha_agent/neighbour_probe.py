"""Asks the neighbours on one Ethernet who has an address, and tells them that we have it.

The questions leave through packet sockets: only those may send from nobody's address. All of it takes CAP_NET_RAW.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv6Address

from qpid_ha_agent.local_addresses import NetworkInterface
from qpid_ha_agent.neighbour_frames import (
    ADVERTISEMENT,
    ALL_NODES,
    BROADCAST,
    HOP_LIMIT,
    Claim,
    advertisement,
    arp_announcements,
    arp_probe,
    group_mac,
    read_advertisement,
    read_arp,
    solicitation,
)

_PROBES = 3
_ETH_ARP, _ETH_IPV6 = 0x0806, 0x86DD
_ICMP6_FILTER = 1
_LONGEST = 2048


def first_claim(
    link: NetworkInterface, address: IPv4Address | IPv6Address, wait_s: float, ignored_macs: frozenset[bytes]
) -> bytes | None:
    """The MAC of the first who claims `address` after we asked; None when for `wait_s` nobody else did.

    The question is asked three times, evenly over that time: one lost frame shall not make two hosts have one address.
    Raises OSError.
    """
    with ExitStack() as stack:
        if isinstance(address, IPv4Address):
            ask, next_claim, receiver = _arp_question(stack, link, address)
        else:
            ask, next_claim, receiver = _solicitation_question(stack, link, address)
        begin_s = time.monotonic()
        for asked in range(1, _PROBES + 1):
            ask()
            while (left_s := begin_s + wait_s * asked / _PROBES - time.monotonic()) > 0:
                if not select.select([receiver], [], [], left_s)[0]:
                    break
                claim = next_claim()
                if claim and claim.address == address and claim.mac not in ignored_macs:
                    return claim.mac
    return None


def announce_to_neighbours(
    link: NetworkInterface, address: IPv4Address | IPv6Address, count: int, pause_s: float
) -> None:
    """`count` times a gratuitous ARP of each form, or an unsolicited neighbour advertisement. Raises OSError."""
    if isinstance(address, IPv4Address):
        frames: tuple[bytes, ...] = arp_announcements(link.mac, address)
        to = (link.nic, _ETH_ARP, 0, 0, BROADCAST)
    else:
        frames = (advertisement(link.mac, address),)
        to = (link.nic, _ETH_IPV6, 0, 0, group_mac(ALL_NODES))
    # One socket for all: the kernel takes many milliseconds to close one.
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM) as sender:
        for sent in range(count):
            time.sleep(pause_s if sent else 0)
            for frame in frames:
                sender.sendto(frame, to)


_Question = tuple[Callable[[], object], Callable[[], Claim | None], socket.socket]


def _arp_question(stack: ExitStack, link: NetworkInterface, address: IPv4Address) -> _Question:
    # Without a protocol until it is bound: nothing of other interfaces comes in.
    both = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM))
    both.bind((link.nic, _ETH_ARP))
    probe = arp_probe(link.mac, address)

    def ask() -> object:
        return both.sendto(probe, (link.nic, _ETH_ARP, 0, 0, BROADCAST))

    return ask, lambda: read_arp(both.recv(_LONGEST)), both


def _solicitation_question(stack: ExitStack, link: NetworkInterface, address: IPv6Address) -> _Question:
    sender = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM))
    receiver = stack.enter_context(_advertisements(link.nic))
    group, packet = solicitation(address)

    def ask() -> object:
        return sender.sendto(packet, (link.nic, _ETH_IPV6, 0, 0, group_mac(group)))

    return ask, lambda: _next_advertisement(receiver), receiver


def _advertisements(nic: str) -> socket.socket:
    """The kernel lets only neighbour advertisements through: on a busy link nothing else can fill the buffer."""
    receiver = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    try:
        blocked = (1 << 256) - 1 & ~(1 << ADVERTISEMENT)
        words = [blocked >> shift & 0xFFFFFFFF for shift in range(0, 256, 32)]
        receiver.setsockopt(socket.IPPROTO_ICMPV6, _ICMP6_FILTER, struct.pack("=8I", *words))
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, nic.encode() + b"\0")
        receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVHOPLIMIT, 1)
    except OSError:
        receiver.close()
        raise
    return receiver


def _next_advertisement(receiver: socket.socket) -> Claim | None:
    message, extras, _, _ = receiver.recvmsg(_LONGEST, socket.CMSG_SPACE(4))
    limits = [
        int.from_bytes(data, sys.byteorder)
        for level, kind, data in extras
        if level == socket.IPPROTO_IPV6 and kind == socket.IPV6_HOPLIMIT
    ]
    return read_advertisement(message) if limits == [HOP_LIMIT] else None
