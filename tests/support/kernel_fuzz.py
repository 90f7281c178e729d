"""Random calls of every function of the kernel, with right arguments, and with such as no caller of ours gives.

`python -m kernel_fuzz SEED ROUNDS` prints how much it has done. What it finds shows under the sanitizers, with which
tests/integration/test_kernel_sanitized.py runs it; each array has exactly the room that the function may use.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from cproton_ffi import ffi, lib

from kernel_use import engines_of
from paired_batches import Pair, random_frame, story
from qpid_ha_broker.amqp.wire import batches, engine
from qpid_ha_kernel import Kernel, load

_INT_MOST = (1 << 31) - 1


def walk_over(kernel: Kernel, chance: random.Random) -> int:
    """Frames, cut anywhere, from anywhere on; never beyond the end."""
    data = b"".join(random_frame(chance) for _ in range(chance.randrange(5)))
    if chance.random() < 0.3:
        data = chance.randbytes(chance.randrange(64))
    data = data[: chance.randrange(len(data) + 1)]
    exact = kernel.ffi.new("uint8_t[]", data) if data else kernel.ffi.new("uint8_t[]", 0)
    at = chance.choice((0, chance.randrange(len(data) + 1), len(data), -1, 1 << 40))
    stop = kernel.lib.walk_usual_frames(exact, len(data), at, kernel.ffi.new("_Bool *"))
    assert stop >= at
    return 1


def send_over(kernel: Kernel, chance: random.Random) -> int:
    """Messages whose sizes do not add up: as many are sent as lie within the data."""
    pair = Pair(1 << 16, consumes=False, ends_at=-1)
    engine.give_credit(pair.far.link, 1000)
    pair.carry()
    data = chance.randbytes(chance.randrange(2000))
    sizes, left, fitting = [], len(data), 0
    for _ in range(chance.randrange(1, 20)):
        size = chance.choice((0, chance.randrange(200), left, left + 1, -1, _INT_MOST))
        sizes.append(size)
        if fitting == len(sizes) - 1 and 0 <= size <= left:
            left, fitting = left - size, fitting + 1
    exact = kernel.ffi.new("char[]", len(data))
    kernel.ffi.memmove(exact, data, len(data))
    lengths, sent = kernel.ffi.new("int32_t[]", sizes), ffi.new("pn_delivery_t *[]", len(sizes))
    link: Any = pair.link._impl
    if chance.random() < 0.5:
        done = kernel.lib.send_numbered_messages(
            link, chance.getrandbits(64), exact, len(data), lengths, len(sizes), sent
        )
    else:
        text = ffi.new("char[]", 300)
        tags = ffi.new(
            "pn_bytes_t[]", [{"size": chance.randrange(1, 33), "start": text + at} for at in range(len(sizes))]
        )
        done = kernel.lib.send_messages(link, tags, exact, len(data), lengths, len(sizes), sent)
    assert done == fitting, (sizes, len(data))
    pair.carry()
    pair.close()
    return 1


def receive_into_little(kernel: Kernel, chance: random.Random) -> int:
    """Arrays and a buffer of any size: what has no room stays where it is, and comes with the next call."""
    pair = Pair(1 << 16, consumes=False, ends_at=-1)
    engine.give_credit(pair.far.link, 1000)
    pair.carry()
    payloads = [b"\x00" + chance.randbytes(chance.choice((1, 7, 100, 299))) for _ in range(chance.randrange(1, 80))]
    pair.sender.send_all(payloads)
    pair.far.engine.push(pair.near.engine.take_output())
    collector, link = pair.far.engine._collector, pair.far.link._impl
    came: list[bytes] = []
    for _ in range(1000):
        most, room = chance.randrange(1, 70), chance.choice((300, 301, 1000, 65536))
        exact, result = ffi.new("char[]", room), kernel.ffi.new("int32_t[]", 4)
        ends = kernel.ffi.new("int32_t[]", most)
        kernel.lib.receive_deliveries(
            collector, link, exact, room, ffi.new("pn_delivery_t *[]", most), ends,
            kernel.ffi.new("uint64_t[]", most), kernel.ffi.new("_Bool[]", most), most, result,
        )  # fmt: skip
        start = 0
        for end in ends[0 : result[0]]:
            came.append(ffi.buffer(exact)[start:end])
            start = end
        if not result[2] and not lib.pn_collector_pop(collector):  # of another kind, or there are no more
            break
    assert came == payloads
    pair.close()
    return 1


def play(kernel: Kernel, chance: random.Random) -> int:
    """Random traffic between two whole engines."""
    with engines_of("kernel"):
        return sum(map(len, story(chance.getrandbits(32))))


def main(seed: int, rounds: int) -> None:
    """So many rounds of each, from that seed on."""
    kernel = load()
    assert isinstance(kernel, Kernel), kernel
    batches.use_kernel(kernel)
    chance, done = random.Random(seed), 0
    empty = kernel.ffi.new("uintptr_t[]", 16)
    assert not kernel.lib.proton_calls_known(empty, 16)
    assert not kernel.lib.proton_calls_known(empty, 3)
    assert batches.fits(kernel)
    for _ in range(rounds):
        done += play(kernel, chance) + send_over(kernel, chance) + receive_into_little(kernel, chance)
        done += sum(walk_over(kernel, chance) for _ in range(100))
    print("done", done)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
