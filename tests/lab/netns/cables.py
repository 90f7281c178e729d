"""The network of a lab: one bridge, a cable to each machine, and cuts between them."""

from __future__ import annotations

from collections.abc import Iterable

from lab.netns.commands import run
from lab.plan import Plan

_BRIDGE = "lan"
_SET = "bridge lab cuts"


def port(machine: str) -> str:
    """The switch's end of a machine's cable."""
    return f"p-{machine}"


class Cables:
    """A cut is an ordered pair: nothing that the first sends reaches the second. All protocols, ARP among them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.cuts: set[tuple[str, str]] = set()

    def lay(self) -> None:
        """The bridge, and the rule that drops what passes a cut. Carriers stay up whatever is cut."""
        run("ip link set lo up")
        run(f"ip link add {_BRIDGE} type bridge forward_delay 0 mcast_snooping 0")
        run(f"ip link set {_BRIDGE} up")
        run("nft add table bridge lab")
        run(f"nft 'add set {_SET} {{ type ifname . ifname; }}'")
        run("nft 'add chain bridge lab passing { type filter hook forward priority 0; policy accept; }'")
        run("nft add rule bridge lab passing iifname . oifname @cuts drop")

    def plug_in(self, machine: str, process_id: int) -> None:
        """A cable from the switch to eth0 of a machine whose init is that process, with the machine's address."""
        inside = f"nsenter -t {process_id} -n "
        run(f"ip link add {port(machine)} type veth peer name eth0 netns {process_id}")
        run(f"ip link set {port(machine)} master {_BRIDGE} up")
        run(inside + "ip link set lo up")
        run(inside + "ip link set eth0 up")
        run(inside + f"ip addr add {self._plan.address(machine)}/24 brd + dev eth0")

    def pull_out(self, machine: str) -> None:
        """Before the machine's processes end: its kernel side would go on answering for its addresses."""
        run(f"ip link del {port(machine)}", check=False)

    def cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        """These too."""
        for source, target in pairs:
            if not {source, target} <= set(self._plan.machines):
                raise ValueError(f"no machines {source}, {target}")
            run(f'nft \'add element {_SET} {{ "{port(source)}" . "{port(target)}" }}\'')
            self.cuts.add((source, target))

    def heal(self) -> None:
        """One network again."""
        run(f"nft flush set {_SET}")
        self.cuts.clear()
