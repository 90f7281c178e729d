"""What a proxy says of a client's link that it attaches at the primary of the link's set, and what is answered.

A *proxy* is a broker that relays links of its clients to the broker that leads the set (docs/protocol.md, "Relayed
links"). All of it is in the properties of the attach: only another broker of the cluster may have them, on a connection
that offers and desires RELAY_CAPABILITY.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import proton

from qpid_ha_broker.amqp.wire.conditions import INVALID_FIELD, NOT_ALLOWED, AmqpError
from qpid_ha_broker.amqp.wire.consumer_wishes import NO_WISHES, ConsumerWishes
from qpid_ha_broker.amqp.wire.session_request import CONFIRMED, REFUSED
from qpid_ha_broker.amqp.wire.session_request import HELD as SESSION_HELD
from qpid_ha_broker.model.sessions import SessionPart

RELAY_CAPABILITY: Final = "qpid.relay"
"""Links to and from queues, and publishers' links to exchanges."""
RELAY_SETS_CAPABILITY: Final = "qpid.relay-sets"
"""Also links to a resource set and not to one node of it can be relayed: coordinators, and anonymous relays."""
COORDINATOR: Final = "$relay/coordinator"
"""Address of a relayed client's coordinator: the attach to AMQP's own has no properties that would say whose it is."""
OWN_NODES_CAPABILITY: Final = "qpid.relay-own-nodes"
"""Beside RELAY_CAPABILITY: links with a node of their own, which are dynamic ones and subscriptions; and `$management`.
A broker that does not offer it would mistake the proxy for the subscriber."""
RELAY_SESSIONS_CAPABILITY: Final = "qpid.relay-sessions"
"""Beside RELAY_CAPABILITY: sessions of clients, and links of theirs. A broker that does not offer it would hold nothing
for them."""
RELAY_MANAGEMENT_CAPABILITY: Final = "qpid.relay-set-management"
"""Beside RELAY_CAPABILITY: links to and from `$management` for the queues of one resource set, at its primary."""
RELAY_RESERVATIONS_CAPABILITY: Final = "qpid.relay-reservations"
"""Beside RELAY_CAPABILITY: container ids that one connection of the cluster has alone, at the primary of `default`."""
PATH: Final = "qpid.relay-path"
CLIENT: Final = "qpid.relay-client"
CONTAINER: Final = "qpid.relay-container"
USER: Final = "qpid.relay-user"
ADDRESS: Final = "qpid.relay-address"
LINK: Final = "qpid.relay-link"
OWN_QUEUE: Final = "qpid.relay-queue"
PRODUCER: Final = "qpid.relay-producer"
SET: Final = "qpid.relay-set"
REFUSED_BEFORE: Final = "qpid.relay-refused"
SESSION: Final = "qpid.relay-session"
LATE_REFUSAL: Final = "qpid.relay-late-refusal"
"""In the error of a rejected message: those behind it were looked at, and may have been taken."""
UNSEEN: Final = "x-opt-qpid-unseen"
"""Message annotation of an outcome that gives a message back: the client has not seen it. A primary that does not know
it takes it for one that the client gave back."""
HELD: Final = "qpid.held"
DECLINED: Final = "qpid.declined"
GENERATION: Final = "qpid.generation"

ITSELF: Final = "the broker itself"
"""In the path of a link that a broker relays to itself, because it leads by now: that is no way back to where the link
began. No broker has such a name."""
RETURN_MS: Final = 10_000
"""So long what only a proxy's clients use is kept when the proxy is not heard of: it may attach their links again."""
RUN_BITS: Final = 40
"""Of a relayed message's number: the rest counts how often the sender has begun again after a refusal."""
MAX_HELD_BYTES: Final = 48 * 1024
"""Of ids in an attach, which has to fit into one frame."""
_MAX_IDS_BYTES: Final = 1 << 20
_MAX_TEXT: Final = 1024
_MAX_PRODUCER_BYTES: Final = 255


class RelayRequest(NamedTuple):
    """A link that is relayed: for whom, by whom, and what is there of it already."""

    path: tuple[str, ...]
    """The brokers that it came by, the one with the client first; or ITSELF."""
    client: str
    """The client's connection, by a name of the proxy's: who has a queue alone has it on one connection."""
    container: str = ""
    """The client's container id."""
    user: str = ""
    """Who the client has proved to be, as the proxy vouches; empty: nobody."""
    producer: bytes = b""
    """Who numbers the messages of this link."""
    generation: int = 0
    """In which the messages of `held` were handed out; 0: none were."""
    held: tuple[int, ...] = ()
    """Ids of messages that the client has and has not answered, or has answered and nobody has confirmed it."""
    set_name: str = ""
    """Of a coordinator or an anonymous relay: the resource set to which all belongs that comes on the link. Of
    `$management`: the one whose queues it is asked about; empty: `default`, with what is known there of all others."""
    link: str = ""
    """The client's name for the link, by which it is known who has a durable subscription."""
    own_queue: str = ""
    """The queue that was made for this link when it was attached before; empty: it was not, or has none."""
    session: SessionPart | None = None
    """The client's session that it is a link of; None: of none."""
    address: str = ""
    """`host:port` of the client's socket, as the first broker sees it; empty: that one is of an older release."""
    refused: tuple[tuple[bytes, tuple[int, ...]], ...] = ()
    """Of a publisher whose client numbers its messages: by producer, as the client calls it, ascending numbers of what
    was refused. The primary that did so noted that, and may have died before a later message had it written."""
    declined: tuple[int, ...] = ()
    """Ids of messages that the client has given back as undeliverable here, handed out as those of `held`."""
    wishes: ConsumerWishes = NO_WISHES
    """What a consumer asks for, to be written: the primary reads it as that of its own clients. An older one takes no
    notice of it, and does not repeat it."""

    @property
    def client_text(self) -> str:
        """Who the client is, for operators."""
        address = f" at {self.address}" if self.address else ""
        return f"{self.user or 'anonymous'} ({self.container or 'no container id'}){address} by way of {self.path[0]}"

    def properties(self) -> dict[Any, Any]:
        """Of the attach."""
        of_set = {SET: self.set_name} if self.set_name else {}
        of_session = {} if self.session is None else {SESSION: _session_fields(self.session)}
        refused = [field for name, numbers in self.refused for field in (name, encode_ids(numbers))]
        of_refused = {REFUSED_BEFORE: refused} if refused else {}
        of_declined = {DECLINED: encode_ids(self.declined)} if self.declined else {}
        return _symbols(
            {
                PATH: list(self.path),
                CLIENT: self.client,
                CONTAINER: self.container,
                USER: self.user,
                ADDRESS: self.address,
                PRODUCER: self.producer,
                GENERATION: proton.ulong(self.generation),
                HELD: encode_ids(self.held),
                **of_set,
                **of_session,
                **of_refused,
                **of_declined,
                **self.wishes.properties(),
                LINK: self.link,
                OWN_QUEUE: self.own_queue,
            }
        )


class RelayAnswer(NamedTuple):
    """What the primary says of a relayed consumer."""

    generation: int
    """Of the set: that in which messages of this link are handed out."""
    held: tuple[int, ...]
    """Those of the request that the client still has; they come first, without content."""
    own_queue: str = ""
    """What the link consumes from: what a subscription's queue is called, its address does not say."""
    session_held: int | None = None
    """How many messages a session holds on this link, all of which come first; None: it holds nothing there, ever."""
    declined: tuple[int, ...] = ()
    """Those of the request that are there, and do not come on this link."""

    def properties(self) -> dict[Any, Any]:
        """Of the attach."""
        held = encode_ids(self.held)
        of_session = {} if self.session_held is None else {SESSION_HELD: proton.ulong(self.session_held)}
        of_declined = {DECLINED: encode_ids(self.declined)} if self.declined else {}
        said = {GENERATION: proton.ulong(self.generation), HELD: held, OWN_QUEUE: self.own_queue}
        return _symbols({**said, **of_session, **of_declined})


def read_request(properties: object) -> RelayRequest | None:
    """The request in the properties of an attach; None: the link is not relayed. Raises AmqpError."""
    if not isinstance(properties, dict) or PATH not in properties:
        return None
    path = properties[PATH]
    if not isinstance(path, list) or not path or not all(isinstance(name, str) for name in path):
        raise _malformed(PATH, "a list of names of brokers")
    return RelayRequest(
        tuple([str(name) for name in path]),
        _text(properties, CLIENT),
        _text(properties, CONTAINER),
        _text(properties, USER),
        _binary(properties, PRODUCER, _MAX_PRODUCER_BYTES),
        _number(properties, GENERATION),
        decode_ids(_binary(properties, HELD, MAX_HELD_BYTES)),
        _text(properties, SET),
        _text(properties, LINK),
        _text(properties, OWN_QUEUE),
        _session(properties.get(SESSION)),
        _text(properties, ADDRESS),
        _refused(properties.get(REFUSED_BEFORE, [])),
        decode_ids(_binary(properties, DECLINED, MAX_HELD_BYTES)),
    )


def read_answer(properties: object) -> RelayAnswer:
    """The primary's answer. Raises AmqpError."""
    fields = properties if isinstance(properties, dict) else {}
    held = decode_ids(_binary(fields, HELD, MAX_HELD_BYTES))
    session_held = _number(fields, SESSION_HELD) if SESSION_HELD in fields else None
    declined = decode_ids(_binary(fields, DECLINED, MAX_HELD_BYTES))
    return RelayAnswer(_number(fields, GENERATION), held, _text(fields, OWN_QUEUE), session_held, declined)


def told_to_client(properties: object) -> dict[Any, Any] | None:
    """Of the properties of the primary's attach those that are for the client of a session; None: there are none."""
    fields = properties if isinstance(properties, dict) else {}
    return _symbols({name: fields[name] for name in (CONFIRMED, REFUSED, SESSION_HELD) if name in fields}) or None


def _session_fields(part: SessionPart) -> list[object]:
    return [proton.ulong(part.id), part.name, proton.ulong(part.epoch), part.link]


def _session(value: object) -> SessionPart | None:
    if value is None:
        return None
    match value:
        case [int(number), str(name), int(epoch), str(link)] if number > 0 and epoch > 0:
            return SessionPart(int(number), str(name), int(epoch), str(link))
    raise _malformed(SESSION, "the id, the UUID and the epoch of a session, and the name of its link")


def _refused(value: object) -> tuple[tuple[bytes, tuple[int, ...]], ...]:
    if (
        not isinstance(value, list)
        or len(value) % 2
        or not all(isinstance(field, bytes | memoryview) for field in value)
    ):
        raise _malformed(REFUSED_BEFORE, "a list of producers, each with numbers")
    fields = [bytes(field) for field in value]
    if any(len(field) > MAX_HELD_BYTES for field in fields):
        raise _malformed(REFUSED_BEFORE, f"fields of at most {MAX_HELD_BYTES} bytes")
    return tuple([(name, decode_ids(ids)) for name, ids in zip(fields[::2], fields[1::2], strict=True)])


def check_path(request: RelayRequest, own: str) -> None:
    """Refuse to send a link on that was here before. Raises AmqpError with the way it took."""
    if own in request.path:
        way = " -> ".join((*request.path, own))
        text = f"the link comes back to where it began, {way}: does the address of a broker lead to another one?"
        raise AmqpError(NOT_ALLOWED, text)


def same_ids(
    ids: Iterable[int], handed_out_in: int, generations: Sequence[tuple[int, int]], *, links_outlive: bool = False
) -> list[int]:
    """Of `ids` those that mean the same messages here, where each of `generations` began at an LSN.

    A message that a primary hands out may be lost with it, and its id is then given to another one. Two logs agree on
    all that lies before the first generation that is newer than the one in which the id was handed out.

    `links_outlive`: a generation ends no link, as in a group, where each change of who is in sync begins one. What is
    handed out there all have whom the next record may name; and an operator who has the group go on with an older copy
    begins a generation that does not follow the last one of that. So while each of the newer ones follows the one
    before it, `handed_out_in` is just the first one of the link, and all ids mean the same.
    """
    newer = [first_lsn for generation, first_lsn in generations if generation > handed_out_in]
    numbers = {handed_out_in, *[generation for generation, _ in generations]}
    if links_outlive and all(number - 1 in numbers for number in numbers if number > handed_out_in):
        return list(ids)
    end = min(newer, default=1 << 64)
    return [message_id for message_id in ids if message_id < end]


def encode_ids(ids: Sequence[int]) -> bytes:
    """Ascending ids in little room; of many the first that fit into MAX_HELD_BYTES, the oldest."""
    count = len(ids)
    while True:
        data = zlib.compress(_differences(ids[:count]), 1) if count else b""
        if len(data) <= MAX_HELD_BYTES:
            return data
        count //= 2


def _differences(ids: Sequence[int]) -> bytes:
    data, last = bytearray(), 0
    for number in ids:
        rest, last = number - last, number
        if rest <= 0:
            raise ValueError(f"ids ascend from 1, found {number} behind {number - rest}")
        while rest > 0x7F:
            data.append(rest & 0x7F | 0x80)
            rest >>= 7
        data.append(rest)
    return bytes(data)


def decode_ids(data: bytes) -> tuple[int, ...]:
    """What `encode_ids` was given. Raises AmqpError for anything else."""
    if not data:
        return ()
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(data, _MAX_IDS_BYTES)
    except zlib.error as error:
        raise _malformed(HELD, f"ids of messages ({error})") from error
    if not inflater.eof:
        raise _malformed(HELD, f"ids of messages in {_MAX_IDS_BYTES} bytes")
    ids, last, rest, shift = [], 0, 0, 0
    for byte in raw:
        rest |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            last += rest
            if not rest or last >= 1 << 64:
                raise _malformed(HELD, "ids that ascend, below 2^64")
            ids.append(last)
            rest = shift = 0
        elif shift > 63:
            raise _malformed(HELD, "ids below 2^64")
    if shift:
        raise _malformed(HELD, "whole ids")
    return tuple(ids)


def _symbols(properties: Mapping[str, object]) -> dict[Any, Any]:
    return {proton.symbol(name): value for name, value in properties.items()}


def _text(properties: Mapping[Any, object], name: str) -> str:
    value = properties.get(name, "")
    if not isinstance(value, str):
        raise _malformed(name, "a text")
    return str(value)[:_MAX_TEXT]


def _binary(properties: Mapping[Any, object], name: str, most: int) -> bytes:
    value = properties.get(name, b"")
    if not isinstance(value, bytes | memoryview) or len(value) > most:
        raise _malformed(name, f"a binary of at most {most} bytes")
    return bytes(value)


def _number(properties: Mapping[Any, object], name: str) -> int:
    value = properties.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 64:
        raise _malformed(name, "a number below 2^64")
    return int(value)


def _malformed(name: str, expected: str) -> AmqpError:
    return AmqpError(INVALID_FIELD, f"link property {name}: expected {expected}")
