"""The virtual IP without a network: what is written, what is said on the wire, where an address belongs."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address, ip_interface

import pytest

from qpid_ha_agent.local_addresses import LocalAddress, direct_route_nic, held_addresses, link, own_macs
from qpid_ha_agent.neighbour_frames import (
    ALL_NODES,
    Claim,
    advertisement,
    arp_announcements,
    arp_probe,
    group_mac,
    read_advertisement,
    read_arp,
    solicitation,
)
from qpid_ha_agent.vip import AddressProblem, answers_elsewhere, bring_up, is_up, read_address, take_down
from qpid_ha_agent.virtual_address import nics_of_network

MAC = bytes.fromhex("020000000001")
IPV4 = IPv4Address("192.0.2.100")
IPV6 = IPv6Address("2001:db8::aa:bbcc")


# --- as it is configured


@pytest.mark.parametrize("text", ["10.0.0.100/24", "10.0.0.100/32", "10.0.0.0/31", "2001:db8::100/64", "2001:db8::/64"])
def test_an_address_is_written_with_its_prefix(text: str) -> None:
    address = read_address(f" {text}\n", "bond0.7 ")
    assert (address.interface, address.nic) == (ip_interface(text), "bond0.7")
    assert str(address) == text.partition("/")[0]


@pytest.mark.parametrize(
    ("text", "nic", "advice"),
    [
        ("10.0.0.100", "", "write 192.168.1.100/24"),
        ("", "", "write 192.168.1.100/24"),
        ("broker.example/24", "", "write 192.168.1.100/24"),
        ("10.0.0.100/255.255.255.0", "", "write 192.168.1.100/24"),
        ("fe80::1%eth0/64", "", "virtual_ip_nic"),
        ("10.0.0.300/24", "", "300"),
        ("10.0.0.100/33", "", "33"),
        ("10.0.0.0/24", "", "network itself"),
        ("10.0.0.255/24", "", "broadcast address itself"),
        ("10.0.0.100/0", "", "write that of its network"),
        ("127.0.0.1/8", "", "no network can reach"),
        ("224.0.0.1/24", "", "no network can reach"),
        ("255.255.255.255/32", "", "no network can reach"),
        ("::/64", "", "no network can reach"),
        ("ff02::1/64", "", "no network can reach"),
        ("fe80::1/64", "", "say which with virtual_ip_nic"),
        ("::ffff:10.0.0.1/96", "", "write the IPv4 address, 10.0.0.1"),
        ("10.0.0.100/24", "eth0:1", "as eth0"),
        ("10.0.0.100/24", "an interface of mine", "as eth0"),
    ],
)
def test_what_cannot_be_an_address_is_refused_with_what_to_write(text: str, nic: str, advice: str) -> None:
    with pytest.raises(ValueError) as refused:
        read_address(text, nic)
    assert advice in str(refused.value)


# --- where it belongs


def held(*places: tuple[str, str]) -> list[LocalAddress]:
    return [LocalAddress(ip_interface(text), nic, 0, 0) for nic, text in places]


@pytest.mark.parametrize(
    ("here", "nics"),
    [
        (held(("eth0", "10.0.0.1/24"), ("eth1", "10.0.1.1/24")), ["eth0"]),
        (held(("eth0", "10.0.0.1/24"), ("eth1", "10.1.0.1/8")), ["eth0"]),
        (held(("eth0", "10.0.0.1/24"), ("eth1", "10.0.0.2/24")), ["eth0", "eth1"]),
        (held(("eth0", "10.0.0.1/24"), ("eth0", "10.0.0.2/24")), ["eth0"]),
        (held(("eth0", "10.0.0.1/24"), ("eth1", "10.0.0.100/24")), ["eth0"]),
        (held(("eth1", "10.0.0.100/24")), []),
        (held(("eth0", "10.0.1.1/24")), []),
    ],
    ids=["its network", "the smallest network", "two", "one twice", "not where it is", "itself only", "none"],
)
def test_it_belongs_where_another_address_of_its_network_is(here: list[LocalAddress], nics: list[str]) -> None:
    assert nics_of_network(read_address("10.0.0.100/24"), here) == nics


# --- what this machine has


def test_the_loopback_interface_is_seen_with_its_address() -> None:
    assert ("lo", ip_interface("127.0.0.1/8")) in [(place.nic, place.interface) for place in held_addresses(4)]
    loopback = link("lo")
    assert loopback.is_up
    assert loopback.has_carrier
    assert not loopback.mac
    assert bytes(6) in own_macs()
    assert direct_route_nic(IPv4Address("127.0.0.1")) == ""


def test_an_interface_that_does_not_exist_is_said_without_any_privilege() -> None:
    address = read_address("10.0.0.100/24", "nowhere0")
    assert not is_up(address)
    for action in (bring_up, answers_elsewhere):
        with pytest.raises(AddressProblem, match="no interface nowhere0: set virtual_ip_nic to"):
            action(address)
    take_down(address)


# --- ARP


def test_a_probe_asks_from_nobodys_address() -> None:
    assert arp_probe(MAC, IPV4).hex(" ", 2) == ("0001 0800 0604 0001 0200 0000 0001 0000 0000 0000 0000 0000 c000 0264")
    assert read_arp(arp_probe(MAC, IPV4)) is None


def test_an_announcement_is_a_request_and_a_reply_about_ourselves() -> None:
    request, reply = arp_announcements(MAC, IPV4)
    assert request.hex(" ", 2) == "0001 0800 0604 0001 0200 0000 0001 c000 0264 0000 0000 0000 c000 0264"
    assert reply.hex(" ", 2) == "0001 0800 0604 0002 0200 0000 0001 c000 0264 ffff ffff ffff c000 0264"
    padding = bytes(18)  # Ethernet frames have a least length
    assert read_arp(request + padding) == read_arp(reply + padding) == Claim(IPV4, MAC)


REPLY = arp_announcements(MAC, IPV4)[1]


@pytest.mark.parametrize(
    "broken",
    [b"", REPLY[:27], b"\0\6" + REPLY[2:], REPLY[:7] + b"\3" + REPLY[8:]],
    ids=["empty", "short", "not Ethernet", "neither request nor reply"],
)
def test_what_is_not_arp_for_ipv4_claims_nothing(broken: bytes) -> None:
    assert read_arp(broken) is None


# --- neighbour discovery


def checksum_is_good(packet: bytes) -> bool:
    """All of it, checksum and pseudo header included, sums up to ones only."""
    data = packet[8:40] + struct.pack("!II", len(packet) - 40, 58) + packet[40:]
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    return total % 0xFFFF == 0


def test_a_solicitation_goes_to_those_who_may_have_the_address_from_nobodys() -> None:
    group, packet = solicitation(IPV6)
    assert group == IPv6Address("ff02::1:ffaa:bbcc")
    assert group_mac(group).hex(":") == "33:33:ff:aa:bb:cc"
    assert packet[:8].hex(" ", 4) == "60000000 00183aff"
    assert packet[8:40] == bytes(16) + group.packed
    assert packet[40:42] == b"\x87\0"
    assert packet[44:] == bytes(4) + IPV6.packed  # and no option: nobody has no MAC address
    assert checksum_is_good(packet)


def test_an_unsolicited_advertisement_overrides_what_all_nodes_knew() -> None:
    packet = advertisement(MAC, IPV6)
    assert packet[8:40] == IPV6.packed + ALL_NODES.packed
    assert packet[40:42] == b"\x88\0"
    assert packet[44:].hex(" ", 4) == "20000000 20010db8 00000000 00000000 00aabbcc 02010200 00000001"
    assert checksum_is_good(packet)
    assert read_advertisement(packet[40:]) == Claim(IPV6, MAC)


def test_the_mac_is_found_behind_other_options() -> None:
    message = advertisement(MAC, IPV6)[40:]
    unknown = b"\x0e\2" + bytes(14)
    assert read_advertisement(message[:24] + unknown + message[24:]) == Claim(IPV6, MAC)
    assert read_advertisement(message[:24]) == Claim(IPV6, b"")


@pytest.mark.parametrize(
    "broken",
    [b"", advertisement(MAC, IPV6)[40:63], solicitation(IPV6)[1][40:], advertisement(MAC, IPV6)[40:64] + b"\2\0"],
    ids=["empty", "short", "a question", "an option without a length"],
)
def test_what_is_no_advertisement_claims_nothing(broken: bytes) -> None:
    assert read_advertisement(broken) is None
