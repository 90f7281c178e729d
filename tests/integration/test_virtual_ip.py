"""The virtual IP between real network stacks: two machines with a cable between them, as network namespaces."""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import IPv6Address, ip_address, ip_interface
from typing import NamedTuple

import pytest

from network_namespaces import Machine, why_not_here
from qpid_ha_agent import vip
from qpid_ha_agent.local_addresses import LocalAddress, held_addresses
from qpid_ha_agent.neighbour_frames import ALL_NODES, advertisement, group_mac, solicitation
from qpid_ha_agent.neighbour_probe import announce_to_neighbours
from qpid_ha_agent.vip import AddressProblem, VirtualAddress, read_address
from qpid_ha_agent.vip_action import VirtualIp, VirtualIpInUse, VirtualIpProblem
from running_agent import wait_until

WHY_NOT_HERE = why_not_here()
pytestmark = pytest.mark.skipif(bool(WHY_NOT_HERE), reason=WHY_NOT_HERE)

FAMILIES = [4, 6]
PLENTY_S = 10.0


class World(NamedTuple):
    """The machine that is to have the address, and its neighbour; `address` is in the network of both their eth0."""

    here: Machine
    neighbour: Machine
    address: VirtualAddress
    here_ip: str
    neighbour_ip: str

    @property
    def ip(self) -> str:
        return str(self.address)

    def call(self, action: Callable[..., object], *arguments: object) -> object:
        """One of the functions under test, on the machine that is to have the address."""
        with self.here.inside():
            return action(self.address, *arguments)

    def refusal(self, action: Callable[..., object], *arguments: object) -> str:
        """What it says instead of doing so."""
        with pytest.raises(AddressProblem) as refused:
            self.call(action, *arguments)
        return str(refused.value)

    def places(self) -> list[LocalAddress]:
        """Where the address is, here."""
        with self.here.inside():
            held = held_addresses(self.address.interface.version)
        return [place for place in held if place.interface.ip == self.address.interface.ip]

    def put(self, machine: Machine, nic: str = "eth0", prefix: int = 0, *options: str) -> None:
        """The address on an interface, by hand."""
        text = f"{self.ip}/{prefix or self.address.interface.network.prefixlen}"
        nodad = ["nodad"] if self.address.interface.version == 6 and not options else []
        machine.ip("addr", "add", text, "dev", nic, *nodad, *options)
        if nodad:
            self.wait_until_it_listens(machine, nic)

    def wait_until_it_listens(self, machine: Machine, nic: str) -> None:
        """The kernel joins the group that questions for an IPv6 address go to a little after it has added the address,
        on a busy machine many milliseconds."""
        group, _ = solicitation(IPv6Address(self.ip))
        wait_until(
            lambda: str(group) in machine.ip("maddr", "show", "dev", nic).split(),
            lambda: machine.ip("maddr", "show", "dev", nic),
        )

    def known_mac(self) -> str:
        """Where the neighbour sends what is for the address."""
        found = re.search(r"lladdr (\S+)", self.neighbour.ip("neigh", "show", self.ip, "dev", "eth0"))
        return found[1] if found else ""


def two_machines() -> Iterator[tuple[Machine, Machine]]:
    with Machine() as here, Machine() as neighbour:
        for nic in ("eth0", "eth1"):
            here.plug(nic, neighbour, nic)
        yield here, neighbour


# The kernel looks at its cables once a second, so new ones for every test would cost that much.
shared_machines = pytest.fixture(scope="module")(two_machines)
own_machines = pytest.fixture(two_machines)


@pytest.fixture(params=FAMILIES, ids=["IPv4", "IPv6"])
def world(shared_machines: tuple[Machine, Machine], request: pytest.FixtureRequest) -> World:
    return world_of(shared_machines, request.param)


@pytest.fixture(params=FAMILIES, ids=["IPv4", "IPv6"])
def own_world(own_machines: tuple[Machine, Machine], request: pytest.FixtureRequest) -> World:
    """For what cannot be put back as it was."""
    return world_of(own_machines, request.param)


@pytest.fixture
def ipv4(shared_machines: tuple[Machine, Machine]) -> World:
    return world_of(shared_machines, 4)


@pytest.fixture
def ipv6(shared_machines: tuple[Machine, Machine]) -> World:
    return world_of(shared_machines, 6)


def put_in_order(machine: Machine, host: int) -> None:
    """As new, whatever the test before did."""
    machine.set("net/ipv6/conf/eth0/disable_ipv6", "0")
    for nic in ("eth0", "eth1"):
        machine.ip("addr", "flush", "dev", nic)
        machine.ip("link", "set", nic, "up")
    for family in ("-4", "-6"):
        machine.ip(family, "route", "flush", "table", "main")
        machine.ip(family, "neigh", "flush", "all", "nud", "all")
    machine.ip("addr", "add", f"10.9.0.{host}/24", "dev", "eth0")
    machine.ip("addr", "add", f"fd09::{host}/64", "dev", "eth0", "nodad")


def world_of(machines: tuple[Machine, Machine], version: int) -> World:
    for host, machine in enumerate(machines, start=1):
        put_in_order(machine, host)
    for machine in machines:
        for nic in ("eth0", "eth1"):
            machine.wait_for_carrier(nic)
    if version == 4:
        return World(*machines, read_address("10.9.0.100/24"), "10.9.0.1", "10.9.0.2")
    return World(*machines, read_address("fd09::100/64"), "fd09::1", "fd09::2")


def mac_of(machine: Machine, nic: str = "eth0") -> str:
    return machine.link(nic).mac.hex(":")


def can_connect(world: World) -> bool:
    """Whether the neighbour reaches a server that listens at the address."""
    family = socket.AF_INET if world.address.interface.version == 4 else socket.AF_INET6
    with socket_at(world.here, family) as server:
        server.bind((world.ip, 0))
        server.listen()
        with socket_at(world.neighbour, family) as client:
            client.settimeout(PLENTY_S)
            client.connect(server.getsockname())
            return True


def socket_at(machine: Machine, family: int, kind: int = socket.SOCK_STREAM) -> socket.socket:
    with machine.inside():
        return socket.socket(family, kind)


# --- does anybody answer?


def test_nobody_answers_for_an_address_that_nobody_has(world: World) -> None:
    began_s = time.monotonic()
    assert world.call(vip.answers_elsewhere, 0.1) is None
    assert time.monotonic() - began_s < PLENTY_S / 3


def test_a_neighbour_that_has_the_address_is_found_at_once_by_its_mac(world: World) -> None:
    world.put(world.neighbour)
    began_s = time.monotonic()
    assert world.call(vip.answers_elsewhere, PLENTY_S) == mac_of(world.neighbour)
    assert time.monotonic() - began_s < PLENTY_S  # of three questions one may get lost; the whole time is for nobody


def test_asking_leaves_no_trace_in_the_neighbours_memory(world: World) -> None:
    world.neighbour.ip("neigh", "add", world.ip, "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "stale")
    world.call(vip.answers_elsewhere)
    assert world.known_mac() == "02:00:00:00:00:99"


def test_our_own_second_interface_on_the_same_network_is_no_other_host(own_world: World) -> None:
    world = own_world
    world.neighbour.ip("link", "add", "switch", "up", "type", "bridge")
    for nic in ("eth0", "eth1"):
        world.neighbour.ip("link", "set", nic, "master", "switch")
    world.put(world.here, "eth1")
    from_eth0 = replace(world.address, nic="eth0")

    # The cable from eth0 to eth1 is good: eth1 answers as soon as it is another machine's.
    assert world._replace(address=from_eth0).call(vip.answers_elsewhere) is None
    with Machine() as stranger:
        mac = mac_of(world.here, "eth1")
        world.here.ip("link", "set", "eth1", "netns", str(stranger.pid))
        stranger.ip("link", "set", "eth1", "up")
        world.put(stranger, "eth1")
        stranger.wait_for_carrier("eth1")
        assert world._replace(address=from_eth0).call(vip.answers_elsewhere, PLENTY_S) == mac


@contextmanager
def said_again_and_again(machine: Machine, what: Callable[[], object]) -> Iterator[None]:
    """What that machine says meanwhile, whether it is asked or not."""
    over = threading.Event()

    def keep_talking() -> None:
        with machine.inside():
            while not over.wait(0.005):
                what()

    with ThreadPoolExecutor() as pool:
        talking = pool.submit(keep_talking)
        try:
            yield
        finally:
            over.set()
            talking.result()


@pytest.mark.parametrize(("hop_limit", "believed"), [(255, True), (64, False)])
def test_only_a_neighbour_is_believed_that_it_has_an_ipv6_address(ipv6: World, hop_limit: int, believed: bool) -> None:
    packet = bytearray(advertisement(bytes.fromhex("020000000099"), IPv6Address(ipv6.ip)))
    packet[7] = hop_limit
    with socket_at(ipv6.neighbour, socket.AF_PACKET, socket.SOCK_DGRAM) as sender:
        to = ("eth0", 0x86DD, 0, 0, group_mac(ALL_NODES))
        with said_again_and_again(ipv6.neighbour, lambda: sender.sendto(packet, to)):
            answer = ipv6.call(vip.answers_elsewhere)
    assert answer == ("02:00:00:00:00:99" if believed else None)


def test_what_neighbours_say_about_other_addresses_is_no_answer(world: World) -> None:
    their_own, link = ip_address(world.neighbour_ip), world.neighbour.link("eth0")
    with said_again_and_again(world.neighbour, lambda: announce_to_neighbours(link, their_own, 1, 0)):
        assert world.call(vip.answers_elsewhere) is None
        assert world._replace(address=read_address(f"{their_own}/24")).call(vip.answers_elsewhere) == link.mac.hex(":")


# --- up


def test_an_address_that_was_brought_up_is_reached_by_the_neighbour_at_once(world: World) -> None:
    assert not world.call(vip.is_up)
    world.call(vip.bring_up)
    assert world.call(vip.is_up)
    assert [(place.nic, place.interface) for place in world.places()] == [("eth0", world.address.interface)]
    assert can_connect(world)


def test_bringing_it_up_again_changes_nothing(world: World) -> None:
    world.call(vip.bring_up)
    before = world.places()
    world.call(vip.bring_up)
    assert world.places() == before
    assert can_connect(world)


@pytest.mark.parametrize("prefix", [16, 28, 0], ids=["too wide", "too narrow", "of a single host"])
def test_a_wrong_prefix_is_put_right(world: World, prefix: int) -> None:
    bits = world.address.interface.max_prefixlen
    world.put(world.here, "eth0", prefix or bits)
    assert world.call(vip.is_up)  # clients reach it: no reason to move the primary
    world.call(vip.bring_up)
    assert [place.interface for place in world.places()] == [world.address.interface]
    assert can_connect(world)


def test_an_address_that_would_expire_stays_for_good(world: World) -> None:
    world.put(world.here, "eth0", 0, "valid_lft", "60", "preferred_lft", "60")
    world.call(vip.bring_up)
    (place,) = world.places()
    assert place.is_permanent


def test_the_interface_that_was_named_is_taken_although_no_network_of_it_holds_the_address(world: World) -> None:
    named = world._replace(address=replace(world.address, nic="eth1"))
    named.call(vip.bring_up)
    assert [place.nic for place in named.places()] == ["eth1"]
    assert named.call(vip.is_up)


def test_a_route_without_a_gateway_says_where_an_address_belongs_that_is_in_no_network(world: World) -> None:
    version = world.address.interface.version
    text, network = ("10.77.0.5/32", "10.77.0.0/24") if version == 4 else ("fd77::5/128", "fd77::/64")
    routed = world._replace(address=read_address(text))
    assert routed.refusal(vip.bring_up).endswith("set virtual_ip_nic to eth0 or eth1")
    routed.here.ip("route", "add", network, "dev", "eth0")
    for _ in range(2):
        routed.call(vip.bring_up)
        assert routed.call(vip.is_up)
    routed.call(vip.take_down)
    routed.here.ip("route", "del", network)
    routed.here.ip("route", "add", "default", "via", world.neighbour_ip)
    assert "no interface has a network" in routed.refusal(vip.bring_up)


def test_an_address_that_the_kernel_is_still_testing_is_ours_without_delay(ipv6: World) -> None:
    ipv6.put(ipv6.here, "eth0", 64, "scope", "global")
    (place,) = ipv6.places()
    assert place.is_unconfirmed
    assert not ipv6.call(vip.is_up)
    ipv6.call(vip.bring_up)
    assert ipv6.call(vip.is_up)
    assert can_connect(ipv6)


def test_an_address_that_the_kernel_gave_up_is_ours_once_the_other_host_is_gone(ipv6: World) -> None:
    ipv6.put(ipv6.neighbour)
    ipv6.put(ipv6.here, "eth0", 64, "scope", "global")
    wait_until(lambda: "dadfailed" in ipv6.here.ip("addr", "show"), lambda: ipv6.here.ip("addr", "show"))
    assert "another host may have it" in str(ipv6.call(vip.what_is_wrong))
    ipv6.neighbour.ip("addr", "del", f"{ipv6.ip}/64", "dev", "eth0")
    ipv6.call(vip.bring_up)
    assert ipv6.call(vip.is_up)
    assert can_connect(ipv6)


def test_our_own_connections_do_not_come_from_an_address_that_moves_away(world: World) -> None:
    world.call(vip.bring_up)
    family = socket.AF_INET if world.address.interface.version == 4 else socket.AF_INET6
    with socket_at(world.here, family, socket.SOCK_DGRAM) as client:
        client.connect((world.neighbour_ip, 5672))
        assert client.getsockname()[0] == world.here_ip


# --- what stands in the way


def test_an_interface_that_is_down_is_said_and_left_down(world: World) -> None:
    world.call(vip.bring_up)
    world.here.ip("link", "set", "eth0", "down")
    assert not world.call(vip.is_up)
    world = world._replace(address=replace(world.address, nic="eth0"))
    for action in (vip.bring_up, vip.answers_elsewhere):
        assert "`ip link set eth0 up`" in world.refusal(action)
    assert not world.here.link("eth0").is_up


def test_a_cable_that_is_out_is_said(world: World) -> None:
    world.neighbour.ip("link", "set", "eth0", "down")
    world.here.wait_for_carrier("eth0", carrier=False)
    for action in (vip.bring_up, vip.answers_elsewhere):
        assert "eth0, where" in (said := world.refusal(action))
        assert "no carrier" in said


def test_an_address_that_fits_two_interfaces_is_not_guessed(world: World) -> None:
    second = ip_interface(f"{world.here_ip}/{world.address.interface.network.prefixlen}") + 6
    nodad = ["nodad"] if world.address.interface.version == 6 else []
    world.here.ip("addr", "add", f"{second.ip}/{world.address.interface.network.prefixlen}", "dev", "eth1", *nodad)
    assert "network of eth0 and of eth1" in world.refusal(vip.bring_up)


def test_an_interface_without_ipv6_is_said(ipv6: World) -> None:
    ipv6.here.set("net/ipv6/conf/eth0/disable_ipv6", "1")
    named = ipv6._replace(address=replace(ipv6.address, nic="eth0"))
    assert "net.ipv6.conf.eth0.disable_ipv6" in named.refusal(vip.bring_up)


def test_without_the_privileges_it_says_which_are_missing(world: World) -> None:
    """It is there, and with another prefix, so that each action has something to do."""
    world.put(world.here)
    lacking = "-net_admin,-net_raw"
    code = f"""
from qpid_ha_agent import vip
for action in (vip.take_down, vip.answers_elsewhere, vip.announce, vip.bring_up):
    try:
        action(vip.read_address("{world.address.interface.ip}/{world.address.interface.network.prefixlen - 1}"))
    except vip.AddressProblem as problem:
        print(problem)
"""
    command = ["setpriv", f"--inh-caps={lacking}", f"--bounding-set={lacking}", sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = world.here.run(*command, environment=environment)
    missing = ("NET_ADMIN", "NET_RAW", "NET_RAW", "NET_ADMIN")
    assert said.splitlines() == [
        f"{world.ip} on eth0: not permitted; run as root, or with CAP_{one}" for one in missing
    ]


# --- told to the neighbours


def test_the_neighbour_that_remembers_another_host_is_put_right(world: World) -> None:
    world.neighbour.ip("neigh", "add", world.ip, "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "reachable")
    world.call(vip.bring_up)
    world.call(vip.announce, 1)
    wait_until(lambda: world.known_mac() == mac_of(world.here), world.known_mac)
    assert can_connect(world)


def test_an_address_that_is_not_here_is_not_announced(world: World) -> None:
    assert world.refusal(vip.announce) == f"cannot announce: {world.ip} is on no interface of this machine"


# --- looked after by each monitor of a primary


def look_after(world: World, leads: bool | None = True) -> str | None:
    """As the monitor of a primary does; `leads`: what the record says, if somebody asks."""
    with world.here.inside():
        return VirtualIp(str(world.address.interface), world.address.nic).repair(lambda: leads)


def test_a_client_that_was_cut_off_when_the_address_moved_learns_of_it_at_the_next_monitor(own_world: World) -> None:
    """Its switch is cut off from the new primary's; it still sends to the old one, where the address is no more."""
    world = own_world
    with Machine() as old:
        # With an address of its own: else that of a port, and a port that goes would take what is remembered with it.
        world.neighbour.ip("link", "add", "switch", "address", "02:00:00:00:00:01", "up", "type", "bridge")
        world.neighbour.ip("link", "set", "eth1", "master", "switch")
        world.here.ip("addr", "flush", "dev", "eth0")  # eth1 leads to the switch, on which the client's own address is
        put_on(world.here, "eth1", world.here_ip, world)
        old.plug("eth0", world.neighbour, "old")
        world.neighbour.ip("link", "set", "old", "master", "switch")
        put_on(old, "eth0", str(ip_address(world.here_ip) + 6), world)
        world.neighbour.ip("addr", "flush", "dev", "eth0")
        put_on(world.neighbour, "switch", world.neighbour_ip, world)
        for machine, nic in ((old, "eth0"), (world.here, "eth1"), (world.neighbour, "switch")):
            machine.wait_for_carrier(nic)
        address = str(world.address.interface)
        with old.inside():
            VirtualIp(address, "").bring_up()
            VirtualIp(address, "").announce()
        world.neighbour.run("ping", "-c", "1", "-W", "5", world.ip)
        assert remembered(world) == mac_of(old)

        world.neighbour.ip("link", "set", "eth1", "nomaster")  # cut off from the new primary
        with old.inside():
            VirtualIp(address, "").take_down()
        with world.here.inside():
            VirtualIp(address, "").bring_up()
            VirtualIp(address, "").announce()
        assert remembered(world) == mac_of(old)
        world.neighbour.ip("link", "set", "eth1", "master", "switch")  # healed

        wait_until(lambda: look_after(world) is None and remembered(world) == mac_of(world.here, "eth1"), lambda: "")


def put_on(machine: Machine, nic: str, ip: str, world: World) -> None:
    nodad = ["nodad"] if world.address.interface.version == 6 else []
    machine.ip("addr", "add", f"{ip}/{world.address.interface.network.prefixlen}", "dev", nic, *nodad)


def remembered(world: World) -> str:
    found = re.search(r"lladdr (\S+)", world.neighbour.ip("neigh", "show", world.ip, "dev", "switch"))
    return found[1] if found else ""


def test_an_address_that_is_where_it_belongs_is_announced_again(world: World) -> None:
    world.call(vip.bring_up)
    world.neighbour.ip("neigh", "replace", world.ip, "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "reachable")
    assert look_after(world) is None
    wait_until(lambda: world.known_mac() == mac_of(world.here), world.known_mac)


@pytest.mark.parametrize("leads", [True, False, None], ids=["we lead", "another one leads", "nobody can tell"])
def test_of_two_that_answer_for_it_the_primary_by_the_record_keeps_it(world: World, leads: bool | None) -> None:
    world.call(vip.bring_up)
    world.put(world.neighbour)
    with pytest.raises(VirtualIpProblem, match=mac_of(world.neighbour)) as said:
        look_after(world, leads)
    assert isinstance(said.value, VirtualIpInUse) == (leads is not False)
    assert bool(world.places()) == (leads is not False)


def test_an_address_that_was_moved_to_another_machine_by_hand_is_missed_and_comes_back_when_it_is_free(
    world: World,
) -> None:
    world.call(vip.bring_up)
    world.here.ip("addr", "del", str(world.address.interface), "dev", "eth0")
    world.put(world.neighbour)
    with pytest.raises(VirtualIpInUse, match=mac_of(world.neighbour)):
        look_after(world)
    with world.neighbour.inside():
        VirtualIp(str(world.address.interface), "").take_down()  # as the monitor of a backup does
    assert look_after(world) == f"{world.ip} is on no interface of this machine: it is put right"
    assert world.call(vip.is_up)


@pytest.mark.parametrize("keeps", [True, False], ids=["as well", "instead"])
def test_an_address_that_was_put_on_another_interface_by_hand_goes_back(world: World, keeps: bool) -> None:
    world.call(vip.bring_up)
    world.put(world.here, "eth1")
    if not keeps:
        world.here.ip("addr", "del", str(world.address.interface), "dev", "eth0")
    wrong = f"{world.ip} is on eth0, and on eth1 as well" if keeps else f"{world.ip} is on eth1, not on eth0"
    assert look_after(world) == f"{wrong}: it is put right"
    assert [place.nic for place in world.places()] == ["eth0"]


def test_a_cable_that_is_out_is_no_reason_to_move_the_primary(world: World) -> None:
    world.call(vip.bring_up)
    world.neighbour.ip("link", "set", "eth0", "down")
    world.here.wait_for_carrier("eth0", carrier=False)
    assert look_after(world) is None
    assert world.places()


# --- down, and taken away


def test_an_address_that_was_taken_down_is_gone_and_may_be_taken_down_again(world: World) -> None:
    world.call(vip.bring_up)
    for _ in range(2):
        world.call(vip.take_down)
        assert not world.places()
    assert not world.call(vip.is_up)


def test_it_is_taken_down_wherever_it_is_and_with_whatever_prefix(world: World) -> None:
    world.put(world.here, "eth0", world.address.interface.max_prefixlen)
    world.put(world.here, "eth1")
    world.call(vip.take_down)
    assert not world.places()


def test_it_is_taken_down_when_its_interface_is_gone(own_world: World) -> None:
    world = own_world
    world.call(vip.bring_up)
    world.here.ip("link", "del", "eth0")
    world.call(vip.take_down)
    assert not world.call(vip.is_up)


def test_it_is_no_problem_when_it_goes_while_it_is_taken_down(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.call(vip.bring_up)
    (place,) = world.places()
    before = [place, place._replace(nic="eth9", nic_index=99)]
    world.here.ip("addr", "del", str(world.address.interface), "dev", "eth0")
    monkeypatch.setattr(vip, "addresses_here", lambda _: before)  # it went after this was read
    world.call(vip.take_down)


def test_the_interface_keeps_its_own_address_although_that_came_second(ipv4: World) -> None:
    ipv4.here.ip("addr", "flush", "dev", "eth0")
    ipv4.put(ipv4.here)
    ipv4.here.ip("addr", "add", f"{ipv4.here_ip}/24", "dev", "eth0")
    ipv4.call(vip.take_down)
    assert f"{ipv4.here_ip}/24" in ipv4.here.ip("addr", "show", "eth0")
    assert not ipv4.places()
