"""Random blocks, records and messages for the compiled scan: `python -m scan_fuzz SEED ROUNDS`.

The calls are those of `kernel_scan.py`, without NumPy, which has memory of its own that no sanitizer watches.
"""

from __future__ import annotations

import sys
import zlib
from random import Random

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord, encode_all
from qpid_ha_broker.store.blocks import BlockKind, encode_block
from qpid_ha_kernel import Kernel, load

_MESSAGES = (
    b"\x00\x53\x75\xa0\x03abc", b"\x00\x53\x70\xc0\x02\x01\x41\x00\x53\x77\xb1\x00\x00\x00\x02ab",
    b"\x00\x53\x73\xd0\x00\x00\x00\x05\x00\x00\x00\x01\x40\x00\x53\x76\x45", b"\x00\x53\x75\xb0\xff\xff\xff\xff", b"",
)  # fmt: skip
_ROOM = 400


def records(random: Random) -> bytes:
    """Some, of which now and then a byte is another one."""
    events = [
        random.choice((ev.TransientsLost(1), ev.Enqueued((1, 2), random.choice(_MESSAGES), True, 4, 0, "k")))
        for _ in range(random.randrange(6))
    ]
    data = bytearray(encode_all([LogRecord(number, event, False) for number, event in enumerate(events, 1)]))
    if data and random.random() < 0.5:
        data[random.randrange(len(data))] = random.choice((0, 1, 19, 20, 0x7F, 0xFF))
    return bytes(data[: random.randrange(len(data) + 1)] if random.random() < 0.2 else data)


def window(random: Random) -> bytes:
    """Blocks with checksums that are right, most of them; cut off anywhere."""
    pieces = []
    for _ in range(random.randrange(5)):
        data = records(random)
        lsns = random.choice(((1, 2), (5, 9), (1 << 63, (1 << 63) + 1)))
        head = bytearray(encode_block(1, random.choice(list(BlockKind)), *lsns, 0, 0, 0, data))
        if random.random() < 0.1:
            head[random.randrange(64)] ^= 0x80
        pieces += [bytes(head), data]
    whole = b"".join(pieces)
    return whole[: random.randrange(len(whole) + 1)] if random.random() < 0.5 else whole


def scan(kernel: Kernel, random: Random) -> None:
    """One window, with room for all that may be in it, or for less."""
    ffi, lib = kernel
    data = window(random)
    held = ffi.new("uint8_t[]", data) if data else ffi.new("uint8_t[1]")
    blocks_room, records_room = random.randrange(6), random.choice((random.randrange(10), _ROOM))
    begin = random.randrange(len(data) + 1) if random.random() < 0.1 else 0
    scanned = ffi.new("qh_scanned *")
    lib.qh_scan_blocks(
        held, len(data), begin, 1, 0, random.choice((3, 1 << 62)), random.randrange(4),
        ffi.new("uint8_t[]", bytes([1] * 256)), ffi.new("qh_block[]", blocks_room), blocks_room,
        *(ffi.new("int64_t[]", records_room) for _ in range(3)), ffi.new("uint8_t[]", records_room), records_room,
        scanned,
    )  # fmt: skip
    assert 0 <= scanned.end <= len(data)
    assert scanned.blocks <= blocks_room
    assert scanned.records <= records_room


def find_bodies(kernel: Kernel, random: Random) -> None:
    """Of messages that may be cut off, or lie where there are no bytes."""
    ffi, lib = kernel
    data = bytearray(b"".join(random.choice(_MESSAGES) for _ in range(random.randrange(4))))
    if data and random.random() < 0.5:
        data[random.randrange(len(data))] = random.randrange(256)
    count = random.randrange(4)
    places = [random.randrange(-1, len(data) + 3) for _ in range(2 * count)]
    held = ffi.new("uint8_t[]", bytes(data)) if data else ffi.new("uint8_t[1]")
    outs = [ffi.new("int64_t[]", count) for _ in range(2)]
    found = lib.qh_find_bodies(
        held, len(data), ffi.new("int64_t[]", places[:count]), ffi.new("int64_t[]", places[count:]), count, *outs,
        ffi.new("uint8_t[]", count),
    )  # fmt: skip
    assert 0 <= found <= count


def checksum(kernel: Kernel, random: Random) -> None:
    """As zlib has it."""
    data = random.randbytes(random.randrange(300))
    held = kernel.ffi.new("uint8_t[]", data) if data else kernel.ffi.new("uint8_t[1]")
    assert kernel.lib.qh_crc32(held, len(data), 7) == zlib.crc32(data, 7)


def main(seed: int, rounds: int) -> None:
    """So many rounds of each, from that seed on."""
    kernel, random = load(), Random(seed)
    assert isinstance(kernel, Kernel), kernel
    for _ in range(rounds * 100):
        scan(kernel, random)
        find_bodies(kernel, random)
        checksum(kernel, random)
    print("done", rounds)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
