"""What a lab consists of: its machines, where they are, and how the cluster on them is set up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

NETWORK: Final = "10.77.0"
VIRTUAL_ADDRESS: Final = f"{NETWORK}.50"
CLIENT: Final = "client"
AMQP_PORT: Final = 5672
SERVICE_URL: Final = f"amqp://{VIRTUAL_ADDRESS}:{AMQP_PORT}"


@dataclass(frozen=True)
class Plan:
    """Fixed for the life of a lab."""

    members: tuple[str, ...] = ("n1", "n2", "n3")
    """The nodes of the cluster; each name ends with a digit of its own."""
    token_ms: int = 1000
    """Corosync gives a node up after about 2.2 times this."""
    has_fencing: bool = True
    coordinator: str = "pacemaker"
    """Of the brokers' configuration."""
    boot_delay_s: float = 6.0
    """From power off to power on when a machine is rebooted: a boot takes longer than noticing the loss."""

    @property
    def machines(self) -> tuple[str, ...]:
        """The members, and the one that clients run on."""
        return (*self.members, CLIENT)

    def address(self, machine: str) -> str:
        """Its IPv4 address on the lab's one network."""
        return f"{NETWORK}.100" if machine == CLIENT else f"{NETWORK}.{10 + int(machine[-1])}"

    def brokers_url(self) -> str:
        """Where the brokers find each other."""
        return "amqp://" + ",".join(f"{self.address(member)}:{AMQP_PORT}" for member in self.members)

    def to_json(self) -> str:
        """For the processes of the lab."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The inverse."""
        values: Mapping[str, object] = json.loads(text)
        return cls(
            members=tuple(str(name) for name in _as_list(values["members"])),
            token_ms=int(str(values["token_ms"])),
            has_fencing=bool(values["has_fencing"]),
            coordinator=str(values["coordinator"]),
            boot_delay_s=float(str(values["boot_delay_s"])),
        )


def _as_list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(f"a list is wanted, not {value!r}")
    return value
