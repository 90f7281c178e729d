"""Where brokers are, and which one to try next: those given, those that brokers name, and where they send us."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

PORTS: Final = {"amqp": 5672, "amqps": 5671}
_HOST_PORT: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:/@?#\s]+)(?::([0-9]{1,5}))?/?", re.ASCII)


class BrokerAddress(NamedTuple):
    """One broker. `scheme`: amqp or amqps; an IPv6 `host` has no brackets."""

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str, scheme: str = "amqp") -> BrokerAddress:
        """Read `amqps://HOST:PORT`, or `HOST` for that scheme. Raises ValueError, never with what may be a password."""
        written, separator, rest = text.strip().rpartition("://")
        scheme = written if separator else scheme
        if scheme not in PORTS:
            raise ValueError("an address begins with amqp:// or amqps://")
        if "@" in rest:
            raise ValueError("an address has no user or password: give them as arguments")
        match = _HOST_PORT.fullmatch(rest)
        if match is None:
            raise ValueError(f"{rest!r} is not HOST or HOST:PORT")
        port = PORTS[scheme] if match[2] is None else int(match[2])
        if not 0 < port < 65536:
            raise ValueError(f"port {port} is not from 1 to 65535")
        return cls(scheme, match[1].strip("[]"), port)

    @property
    def is_tls(self) -> bool:
        """Whether the broker has to show a certificate for its host."""
        return self.scheme == "amqps"

    @property
    def is_loopback(self) -> bool:
        """Whether what is sent there stays on this machine."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def parse_addresses(addresses: str | Iterable[str]) -> tuple[BrokerAddress, ...]:
    """`amqp://a:5672,b:5672`, or a list of such texts; a scheme holds for those after it. Raises ValueError."""
    scheme, parsed = "amqp", []
    for text in [addresses] if isinstance(addresses, str) else addresses:
        for part in text.split(","):
            if part.strip():
                parsed.append(BrokerAddress.parse(part, scheme))
                scheme = parsed[-1].scheme
    if not parsed:
        raise ValueError("name at least one broker, such as amqp://127.0.0.1:5672")
    return tuple(dict.fromkeys(parsed))


class Backoff(NamedTuple):
    """How long to wait after so many rounds over all brokers without one that serves, in seconds."""

    first_s: float = 0.05
    most_s: float = 2.0

    def pause_s(self, rounds: int, draw: Callable[[], float]) -> float:
        """Before the next round: doubled each time, and by `draw` (0 to 1) up to half of it less."""
        full_s: float = min(self.most_s, self.first_s * 2 ** min(max(0, rounds - 1), 20))
        return full_s * (1 - draw() / 2)


class BrokerList:
    """The promise: while nobody serves, each broker that is known is tried in each round, and rounds get rarer.

    Who names a broker to us decides whether it may get to know our password (`may_read_password`): the application may
    name any, a broker only over TLS. A notice is a message, which names hosts and vouches for none.

    `draw` gives numbers from 0 to 1: clients that begin together do not all begin at the same broker.
    """

    def __init__(self, given: Sequence[BrokerAddress], backoff: Backoff, draw: Callable[[], float]) -> None:
        self._given = tuple(given)
        self._backoff = backoff
        self._draw = draw
        self._learned: tuple[BrokerAddress, ...] = ()
        """Those of the last list that a broker told, in the order in which to try them."""
        self._vouched: frozenset[BrokerAddress] = frozenset()
        """Named by a broker that had shown a certificate, and will have to show one themselves."""
        self._refused: set[BrokerAddress] = set()
        """Not given, and they did not accept our login: nobody makes us go there again."""
        self._redirect: BrokerAddress | None = None
        self._round = self._shuffled(self._given)
        """What is left of this round; the next one to try is first."""
        self._rounds = 0
        """So many are over since somebody served."""
        self._redirects = 0
        """Followed since the last pause: brokers that know no better may send us in a circle."""

    @property
    def known(self) -> tuple[BrokerAddress, ...]:
        """All, in the order of the next round: who was told of last comes first, and nobody given is forgotten."""
        return tuple(dict.fromkeys((*self._learned, *self._given)))

    def may_read_password(self, broker: BrokerAddress) -> bool:
        """Whether `broker` may be sent the password itself, which it could use elsewhere then: as far as who named it
        goes. Whether others can read it on the way is another question."""
        if broker in self._given or broker in self._vouched:
            return True
        return broker.is_loopback and all(given.is_loopback for given in self._given)

    def learn(self, brokers: Iterable[BrokerAddress], *, over_tls: bool) -> None:
        """A broker's open named these, in an order that it chose for us. `over_tls`: it had shown its certificate."""
        learned = tuple(dict.fromkeys(self._trusted(brokers)))
        if learned:
            self._learned = learned
            self._vouched = frozenset(broker for broker in learned if over_tls and broker.is_tls)

    def learn_anew(self, brokers: Iterable[BrokerAddress]) -> None:
        """A notice named these; all who listen have got the same."""
        learned = tuple(dict.fromkeys(self._trusted(self._shuffled(tuple(brokers)))))
        if learned:
            self._learned = learned

    def redirect(self, broker: BrokerAddress, *, over_tls: bool) -> None:
        """What we want is there: it is the next to be tried, unless many have said so of many since the last pause."""
        if self._redirects <= len(self.known):
            for trusted in self._trusted([broker]):
                self._redirect = trusted
                if over_tls and trusted.is_tls:
                    self._vouched |= {trusted}

    def refused(self, broker: BrokerAddress) -> bool:
        """The broker does not accept our login. False: it was given, and so it is the login that is wrong."""
        if broker in self._given:
            return False
        self._refused.add(broker)
        self._learned = tuple(address for address in self._learned if address != broker)
        self._round = [address for address in self._round if address != broker]
        return True

    def served(self) -> None:
        """The broker that was tried last serves us; when it is lost, the next round begins at once."""
        self._rounds = self._redirects = 0
        self._round = []

    def next(self) -> tuple[BrokerAddress, float]:
        """The broker to try, and for how long to wait before, in seconds."""
        if self._redirect is not None:
            redirect, self._redirect = self._redirect, None
            self._redirects += 1
            return redirect, 0.0
        pause_s = 0.0
        if not self._round:
            self._round = list(self.known)
            if self._rounds:
                pause_s = self._backoff.pause_s(self._rounds, self._draw)
                self._redirects = 0
        broker = self._round.pop(0)
        if not self._round:
            self._rounds += 1
        return broker, pause_s

    def _trusted(self, brokers: Iterable[BrokerAddress]) -> list[BrokerAddress]:
        """Who asked for nothing but TLS is not led to a broker without it."""
        needs_tls = all(broker.is_tls for broker in self._given)
        return [broker for broker in brokers if broker not in self._refused and (broker.is_tls or not needs_tls)]

    def _shuffled(self, brokers: Sequence[BrokerAddress]) -> list[BrokerAddress]:
        left, shuffled = list(brokers), []
        while left:
            shuffled.append(left.pop(min(int(self._draw() * len(left)), len(left) - 1)))
        return shuffled


def read_server_list(value: object, scheme: str) -> list[BrokerAddress]:
    """`failover-server-list` of a broker's open: what can be read of it. `scheme`: of an entry without one."""
    addresses = []
    for entry in value if isinstance(value, list | tuple) else ():
        address = read_host(entry, scheme)
        if address is not None:
            addresses.append(address)
    return addresses


def read_host(entry: object, scheme: str) -> BrokerAddress | None:
    """A map with `network-host` and `port`, as in that list and in the info of a redirect; None: it has neither."""
    if not isinstance(entry, Mapping):
        return None
    values = {str(name): value for name, value in entry.items()}
    host, port = values.get("network-host"), values.get("port")
    chosen = str(values.get("scheme") or scheme)
    if not host or chosen not in PORTS or not isinstance(port, int) or not 0 < port < 65536:
        return None
    return BrokerAddress(chosen, str(host), int(port))


def read_hosts(text: str, scheme: str) -> list[BrokerAddress]:
    """`qpid.known.hosts` of a notice: what can be read of it."""
    addresses = []
    for part in text.split(","):
        try:
            addresses.append(BrokerAddress.parse(part, scheme))
        except ValueError:
            continue
    return addresses
