"""A cluster's record as JSON that an operator can read: of the coordinators that keep bytes. Pure."""

from __future__ import annotations

import json

from qpid_ha_broker.ha.effects import ClusterRecord

FORMAT = 1


def encode_record(record: ClusterRecord) -> bytes:
    """As JSON that an operator can read."""
    return json.dumps({"format": FORMAT, **record._asdict()}, indent=2).encode() + b"\n"


def decode_record(content: bytes) -> ClusterRecord:
    """The record in the bytes that `encode_record` made. Raises ValueError (or RecursionError) with what is wrong.

    Without `claimed` it was written by a release that did not tell: then it is judged as if nothing says that the
    generation has begun, by what is in the logs, as that release did.
    """
    found = json.loads(content)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"it is no record of format {FORMAT}")
    texts = [found.get("cluster"), found.get("primary")]
    numbers = [found.get("generation"), found.get("epoch")]
    members = found.get("members")
    if not isinstance(members, list) or not all(isinstance(text, str) for text in [*texts, *members]):
        raise ValueError("cluster, primary and members are not text")
    if any(isinstance(number, bool) or not isinstance(number, int) or number < 0 for number in numbers):
        raise ValueError("generation and epoch are not numbers")
    claimed = found.get("claimed", found["generation"] > 0)
    if not isinstance(claimed, bool):
        raise ValueError("claimed is neither true nor false")
    return ClusterRecord(
        found["cluster"], found["generation"], found["primary"], found["epoch"], tuple(members), claimed
    )
