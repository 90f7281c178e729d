"""Frames through their encoding, as they would travel between processes."""

from __future__ import annotations

from qpid_ha_broker.ha.frame_codec import decode, encode
from qpid_ha_broker.ha.frames import Frame


def recoded(frame: Frame) -> Frame:
    """What the receiver reads of `frame`."""
    return decode(encode(frame))
