"""The links of a client, by name: which of them a message, an answer or a confirmation is for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from qpid_ha_client.core import events as ev
from qpid_ha_client.core.consuming import ConsumerCore
from qpid_ha_client.core.errors import LinkDoubt
from qpid_ha_client.core.events import Effect, Guarantee
from qpid_ha_client.core.publishing import PublisherCore

PRODUCER_BYTES_MAX: Final = 128

Link = PublisherCore | ConsumerCore


class ClientLinks:
    """The promise: what is said of a link that is not there any more changes nothing."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._links: dict[str, Link] = {}
        self._arrived = 0
        """So many messages have come: their tickets."""
        self.handlers: dict[type, Callable[[Any], list[Effect]]] = {
            ev.CreditGiven: lambda event: self._publishing(event.link, lambda link: link.credited(event.credit)),
            ev.OutcomeTold: lambda event: self._publishing(
                event.link, lambda link: link.told(event.ticket, event.outcome, event.reason)
            ),
            ev.MessageArrived: self._message_arrived,
            ev.AnswerSettled: lambda event: self._consuming(event.link, lambda link: link.settled(event.handle)),
            ev.Published: lambda event: self._publishing(
                event.link, lambda link: link.publish(event.ticket, event.message)
            ),
            ev.VerdictGiven: lambda event: self._consuming(
                event.link, lambda link: link.answered(event.ticket, event.verdict)
            ),
        }
        """What comes of inputs about messages."""

    @property
    def names(self) -> list[str]:
        """Of all links, in the order in which they were wanted."""
        return list(self._links)

    @property
    def is_any_attached(self) -> bool:
        """A broker serves one of them."""
        return any(link.is_attached for link in self._links.values())

    def add(self, wanted: ev.SenderWanted | ev.ReceiverWanted) -> None:
        """Raises ValueError for a name that is taken or too long, and for credit that is none."""
        if wanted.link in self._links:
            raise ValueError(f"there is a link {wanted.link} already: give this one another name")
        if isinstance(wanted, ev.SenderWanted):
            self._links[wanted.link] = PublisherCore(wanted.link, wanted.address, self._producer_of(wanted.link))
        elif wanted.prefetch < 1:
            raise ValueError(f"prefetch of {wanted.link} is 1 or more")
        else:
            self._links[wanted.link] = ConsumerCore(wanted.link, wanted.address, wanted.prefetch)

    def drop(self, name: str) -> bool:
        """Have no such link any more; whether there was one."""
        return self._links.pop(name, None) is not None

    def attach(self, names: Iterable[str]) -> list[Effect]:
        """Attach the links of `names` that are there."""
        effects: list[Effect] = []
        for name in names:
            link = self._links.get(name)
            if link is not None:
                kind = ev.AttachSender if isinstance(link, PublisherCore) else ev.AttachReceiver
                effects.append(kind(link.name, link.address))
        return effects

    def attached(self, event: ev.LinkAttached, guarantee: Guarantee) -> list[Effect]:
        """By a broker that promises so much."""
        link, is_kept = self._links.get(event.link), guarantee is Guarantee.EXACTLY_ONCE
        if isinstance(link, PublisherCore):
            confirmed = (_count(event.properties, "qpid.session-confirmed") or 0) if is_kept else 0
            refused = _numbers(event.properties, "qpid.session-refused") if is_kept else frozenset()
            effects = link.attached(confirmed, refused, numbers_count=guarantee is not Guarantee.AT_LEAST_ONCE)
            return [*effects, ev.LinkReady(event.link, confirmed)]
        if link is None:
            return []
        held = _count(event.properties, "qpid.session-held") if is_kept else None
        forgotten = link.forget_session() if held is None else []
        return [*forgotten, *link.attached(held), ev.LinkReady(event.link, 0)]

    def detach(self, name: str) -> bool:
        """A link is not attached any more; whether there is such a one."""
        link = self._links.get(name)
        if link is not None:
            link.detached()
        return link is not None

    def detach_all(self) -> None:
        """The connection is gone."""
        for link in self._links.values():
            link.detached()

    def doubts(self) -> dict[str, LinkDoubt]:
        """What is not certain, if the session is gone, of those links of which there is such a thing."""
        return {name: doubt for name, link in self._links.items() if any(doubt := link.doubt())}

    def begin_anew(self, session: str, *, resend: bool) -> list[Effect]:
        """In another session."""
        self._session = session
        effects: list[Effect] = []
        for link in self._links.values():
            if isinstance(link, PublisherCore):
                effects += link.begin_anew(self._producer_of(link.name), resend=resend)
            else:
                effects += link.begin_anew()
        return effects

    def check_invariants(self) -> None:
        """Raise AssertionError where a link's tables disagree."""
        for link in self._links.values():
            link.check_invariants()

    def _producer_of(self, link: str) -> str:
        producer = f"{self._session}/{link}"
        if len(producer.encode()) > PRODUCER_BYTES_MAX:
            room = PRODUCER_BYTES_MAX - len(self._session) - 1
            raise ValueError(f"the name of a publishing link has at most {room} bytes: {link}")
        return producer

    def _message_arrived(self, event: ev.MessageArrived) -> list[Effect]:
        self._arrived += 1
        return self._consuming(event.link, lambda link: link.arrived(event, self._arrived))

    def _publishing(self, name: str, act: Callable[[PublisherCore], list[Effect]]) -> list[Effect]:
        link = self._links.get(name)
        return act(link) if isinstance(link, PublisherCore) else []

    def _consuming(self, name: str, act: Callable[[ConsumerCore], list[Effect]]) -> list[Effect]:
        link = self._links.get(name)
        return act(link) if isinstance(link, ConsumerCore) else []


def _count(properties: Mapping[str, Any], name: str) -> int | None:
    """A number that an attach tells; None: it tells none."""
    value = properties.get(name)
    return int(value) if isinstance(value, int) and value >= 0 else None


def _numbers(properties: Mapping[str, Any], name: str) -> frozenset[int]:
    """Several of them; none where the broker tells none."""
    value = properties.get(name)
    return frozenset(number for number in value if isinstance(number, int)) if isinstance(value, list) else frozenset()
