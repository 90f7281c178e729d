"""Many deliveries at once, between Proton's engine and Python: call by call, or in one call of the compiled kernel.

Both do the same, and `tests/unit/test_batches.py` holds them to it:

| function | what |
| --- | --- |
| `receive` | events of a link on which messages come: those that are whole and fit, and what is settled |
| `answers` | events of a link on which messages go: what the peer says of each |
| `update` | say a state of each, settle each, or both |
| `send`, `send_numbered` | messages with tags that were given, or that are ascending numbers |

Which of both runs is decided once, before the first engine is made (`use_kernel`). Of a few deliveries plain Python is
as fast: arrays cost more than the calls that they save.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple, Protocol

from cproton_ffi import ffi, lib

from qpid_ha_broker.amqp.wire.message_format import FrameWalk
from qpid_ha_kernel import Kernel

Delivery = Any
"""A `pn_delivery_t *`: hashable, and valid until settled."""
Transfer = tuple[Delivery, bytes, bool, int]
"""A whole message that came; whether the peer has settled it; and its state, 0 but for transactional work."""
Disposition = tuple[Delivery, int, bool]
"""What the peer said of a message: the state, 0 for nothing, and whether it has settled it."""

EVENTS_LENGTH = 64
"""Dispositions and messages between two looks at the clock."""
RECEIVE_BUFFER = 64 * 1024
NUMBER_LENGTH = 16
"""Digits of a tag that is a number."""
FEW = 4
"""Fewer than that are not worth an array."""
_SENT_MOST_BYTES = 1 << 20
"""Messages are copied into one piece of this size at most: a large one is not."""
_CALLS: Final = (
    "pn_collector_peek", "pn_collector_pop", "pn_event_type", "pn_event_delivery", "pn_delivery_link",
    "pn_delivery_pending", "pn_delivery_partial", "pn_delivery_readable", "pn_delivery_settled",
    "pn_delivery_remote_state", "pn_link_recv", "pn_link_advance", "pn_delivery", "pn_link_send", "pn_delivery_update",
    "pn_delivery_settle",
)  # fmt: skip
"""In the order of the table in `deliveries.c`."""
_DELIVERY_EVENT: Final = 28
"""PN_DELIVERY as `deliveries.c` has it."""

_peek, _pop = lib.pn_collector_peek, lib.pn_collector_pop
_type_of, _delivery_of, _link_of = lib.pn_event_type, lib.pn_event_delivery, lib.pn_delivery_link
_pending, _is_partial, _is_settled = lib.pn_delivery_pending, lib.pn_delivery_partial, lib.pn_delivery_settled
_state_of, _is_readable = lib.pn_delivery_remote_state, lib.pn_delivery_readable
_receive, _advance, _unpack = lib.pn_link_recv, lib.pn_link_advance, ffi.unpack
_new_delivery, _write = lib.pn_delivery, lib.pn_link_send
_update, _settle = lib.pn_delivery_update, lib.pn_delivery_settle
_DELIVERY: int = lib.PN_DELIVERY


class Received(NamedTuple):
    """What was taken of the events of one link."""

    transfers: list[Transfer]
    settlements: list[Disposition]
    """The peer has settled these, of which nothing is to be read."""
    events: int
    """How many were taken."""
    has_unusual: bool
    """The next event is still there: of a delivery that is large, empty, not whole, or taken back."""
    has_more: bool
    """The buffer is full: ask again."""


class BatchReader(Protocol):
    """What came: used by one thread, with one buffer."""

    def receive(self, collector: Any, link: Any, most: int) -> Received: ...
    def answers(self, collector: Any, link: Any, most: int) -> list[Disposition]: ...


class BatchWriter(Protocol):
    """What is sent and said."""

    def update(self, deliveries: Sequence[Delivery], state: int, settle: bool) -> None: ...
    def send(self, link: Any, tags: Sequence[Any], payloads: Sequence[bytes]) -> list[Delivery]: ...
    def send_numbered(self, link: Any, first: int, payloads: Sequence[bytes]) -> list[Delivery]: ...


class PlainReader:
    """One call of Proton's for each step."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def receive(self, collector: Any, link: Any, most: int) -> Received:
        buffer, count, has_unusual = self._buffer, 0, False
        transfers: list[Transfer] = []
        settlements: list[Disposition] = []
        while count < most and (event := _peek(collector)) and _type_of(event) == _DELIVERY:
            delivery = _delivery_of(event)
            if _link_of(delivery) != link:
                break
            size = _pending(delivery)
            # Of one that was taken back Proton says that a byte is pending, and gives none.
            is_usual = 0 < size <= RECEIVE_BUFFER and not _is_partial(delivery)
            if is_usual and (received := _receive(link, buffer, size)) > 0:
                data = _unpack(buffer, received)
                _advance(link)
                transfers.append((delivery, data, _is_settled(delivery), _state_of(delivery)))
            elif size or _is_readable(delivery):
                has_unusual = True
                break
            elif _is_settled(delivery):
                settlements.append((delivery, _state_of(delivery), True))
            count += 1
            _pop(collector)
        return Received(transfers, settlements, count, has_unusual, False)

    def answers(self, collector: Any, link: Any, most: int) -> list[Disposition]:
        batch: list[Disposition] = []
        while len(batch) < most and (event := _peek(collector)) and _type_of(event) == _DELIVERY:
            delivery = _delivery_of(event)
            if _link_of(delivery) != link:
                break
            batch.append((delivery, _state_of(delivery), _is_settled(delivery)))
            _pop(collector)
        return batch


class PlainWriter:
    """One call of Proton's for each step."""

    def update(self, deliveries: Sequence[Delivery], state: int, settle: bool) -> None:
        for delivery in deliveries:
            if state:
                _update(delivery, state)
            if settle:
                _settle(delivery)

    def send(self, link: Any, tags: Sequence[Any], payloads: Sequence[bytes]) -> list[Delivery]:
        deliveries = []
        for tag, payload in zip(tags, payloads, strict=True):
            deliveries.append(_new_delivery(link, tag))
            _write(link, payload, len(payload))
            _advance(link)
        return deliveries

    def send_numbered(self, link: Any, first: int, payloads: Sequence[bytes]) -> list[Delivery]:
        text = ffi.new("char[]", NUMBER_LENGTH)  # the next one overwrites it: Proton copies it
        tag = ffi.new("pn_bytes_t *", {"size": NUMBER_LENGTH, "start": text})[0]
        digits, deliveries = ffi.buffer(text), []
        for number, payload in enumerate(payloads, first):
            digits[:] = b"%016x" % number
            deliveries.append(_new_delivery(link, tag))
            _write(link, payload, len(payload))
            _advance(link)
        return deliveries


class KernelReader:
    """One call of the kernel for a batch."""

    def __init__(self, kernel: Kernel, buffer: Any) -> None:
        new = kernel.ffi.new
        self._buffer, self._bytes = buffer, ffi.buffer(buffer)
        self._values = kernel.ffi.unpack
        self._receive, self._answers = kernel.lib.receive_deliveries, kernel.lib.take_answers
        self._unusual, self._full = kernel.lib.RECEIVED_UNUSUAL, kernel.lib.RECEIVED_FULL
        self._deliveries = ffi.new("pn_delivery_t *[]", EVENTS_LENGTH)
        self._ends, self._states = new("int32_t[]", EVENTS_LENGTH), new("uint64_t[]", EVENTS_LENGTH)
        self._settled, self._result = new("_Bool[]", EVENTS_LENGTH), new("int32_t[]", 4)

    def receive(self, collector: Any, link: Any, most: int) -> Received:
        most = min(most, EVENTS_LENGTH)
        deliveries, ends, states, settled = self._deliveries, self._ends, self._states, self._settled
        values, result = self._values, self._result
        stop = self._receive(
            collector, link, self._buffer, RECEIVE_BUFFER, deliveries, ends, states, settled, most, result
        )
        count, settled_count, events, is_plain = values(result, 4)
        transfers: list[Transfer] = []
        settlements: list[Disposition] = []
        if count:
            data, start, payloads = self._bytes, 0, []
            for end in values(ends, count):
                payloads.append(data[start:end])
                start = end
            if is_plain:
                transfers = list(zip(_unpack(deliveries, count), payloads, repeat(False), repeat(0), strict=False))
            else:
                flags, of_each = values(settled, count), values(states, count)
                transfers = list(zip(_unpack(deliveries, count), payloads, flags, of_each, strict=True))
        if settled_count:
            places = range(most - 1, most - 1 - settled_count, -1)
            settlements = [(deliveries[at], states[at], True) for at in places]
        return Received(transfers, settlements, events, stop == self._unusual, stop == self._full)

    def answers(self, collector: Any, link: Any, most: int) -> list[Disposition]:
        deliveries, states, settled = self._deliveries, self._states, self._settled
        count = self._answers(collector, link, deliveries, states, settled, min(most, EVENTS_LENGTH))
        values = self._values
        return list(zip(_unpack(deliveries, count), values(states, count), values(settled, count), strict=True))


class KernelWriter:
    """One call of the kernel for a batch that is not small."""

    def __init__(self, kernel: Kernel) -> None:
        self._plain = PlainWriter()
        self._new = kernel.ffi.new
        self._update, self._send = kernel.lib.update_deliveries, kernel.lib.send_messages
        self._send_numbered = kernel.lib.send_numbered_messages

    def update(self, deliveries: Sequence[Delivery], state: int, settle: bool) -> None:
        if len(deliveries) < FEW:
            self._plain.update(deliveries, state, settle)
        else:
            self._update(ffi.new("pn_delivery_t *[]", deliveries), len(deliveries), state, settle)

    def send(self, link: Any, tags: Sequence[Any], payloads: Sequence[bytes]) -> list[Delivery]:
        sizes = list(map(len, payloads))
        if not _is_worth_it(sizes):
            return self._plain.send(link, tags, payloads)
        count, data = len(sizes), b"".join(payloads)
        given, sent = ffi.new("pn_bytes_t[]", tags), ffi.new("pn_delivery_t *[]", count)
        done = self._send(link, given, data, len(data), self._new("int32_t[]", sizes), len(given), sent)
        return _all_of(sent, done, count)

    def send_numbered(self, link: Any, first: int, payloads: Sequence[bytes]) -> list[Delivery]:
        sizes = list(map(len, payloads))
        if not _is_worth_it(sizes):
            return self._plain.send_numbered(link, first, payloads)
        count, data = len(sizes), b"".join(payloads)
        sent = ffi.new("pn_delivery_t *[]", count)
        done = self._send_numbered(link, first, data, len(data), self._new("int32_t[]", sizes), count, sent)
        return _all_of(sent, done, count)


def frame_walk() -> FrameWalk | None:
    """The kernel's way past frames about which there is nothing to know; None: there is none."""
    kernel = _Chosen.kernel
    if kernel is None:
        return None
    walk, as_bytes, has_attach = kernel.lib.walk_usual_frames, kernel.ffi.from_buffer, kernel.ffi.new("_Bool *")

    def walk_frames(data: bytes | memoryview, at: int) -> tuple[int, bool]:
        return walk(as_bytes("uint8_t[]", data), len(data), at, has_attach), has_attach[0]

    return walk_frames


def _is_worth_it(sizes: list[int]) -> bool:
    return len(sizes) >= FEW and sum(sizes) <= _SENT_MOST_BYTES


def _all_of(sent: Any, done: int, count: int) -> list[Delivery]:
    if done != count:
        raise MemoryError(f"Proton made {done} deliveries of {count}")
    deliveries: list[Delivery] = _unpack(sent, count)
    return deliveries


class _Chosen:
    """What runs in this process."""

    kernel: Kernel | None = None
    writer: BatchWriter = PlainWriter()


def fits(kernel: Kernel) -> bool:
    """Whether `kernel` knows as many functions of Proton's as there are here; it is told them."""
    addresses = [int(ffi.cast("uintptr_t", ffi.addressof(lib, name))) for name in _CALLS]
    return _DELIVERY == _DELIVERY_EVENT and bool(kernel.lib.proton_calls_known(addresses, len(addresses)))


def use_kernel(kernel: Kernel | None) -> None:
    """From now on engines are made with `kernel`; None: in plain Python. Raises ValueError where it does not fit."""
    if kernel is not None and not fits(kernel):
        raise ValueError("the kernel does not fit this release of Proton")
    _Chosen.kernel = kernel
    _Chosen.writer = PlainWriter() if kernel is None else KernelWriter(kernel)


def uses_kernel() -> bool:
    """Whether it is the kernel that runs in this process."""
    return _Chosen.kernel is not None


def batch_reader(buffer: Any) -> BatchReader:
    """For engines that share `buffer`, of RECEIVE_BUFFER bytes at least."""
    return PlainReader(buffer) if _Chosen.kernel is None else KernelReader(_Chosen.kernel, buffer)


def batch_writer() -> BatchWriter:
    """For all links."""
    return _Chosen.writer
