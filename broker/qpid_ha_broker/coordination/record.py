"""A cluster's record as JSON that an operator can read: of the coordinators that keep bytes. Pure."""

from __future__ import annotations

import json

from qpid_ha_broker.ha.cluster_record import ClusterRecord

FORMAT = 1


def encode_record(record: ClusterRecord) -> bytes:
    """As JSON that an operator can read."""
    return json.dumps({"format": FORMAT, **record._asdict()}, indent=2).encode() + b"\n"


def decode_record(content: bytes) -> ClusterRecord:
    """The record in the bytes that `encode_record` made. Raises ValueError (or RecursionError) with what is wrong.

    Without `claimed` it was written by a release that did not tell: then it is judged as if nothing says that the
    generation has begun, by what is in the logs, as that release did.
    """
    fields = json.loads(content)
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise ValueError(f"it is no record of format {FORMAT}")
    texts = [fields.get("cluster"), fields.get("primary")]
    numbers = [fields.get("generation"), fields.get("epoch")]
    members = fields.get("members")
    if not isinstance(members, list) or not all(isinstance(text, str) for text in [*texts, *members]):
        raise ValueError("cluster, primary and members are not text")
    if any(isinstance(number, bool) or not isinstance(number, int) or number < 0 for number in numbers):
        raise ValueError("generation and epoch are not numbers")
    claimed = fields.get("claimed", fields["generation"] > 0)
    if not isinstance(claimed, bool):
        raise ValueError("claimed is neither true nor false")
    return ClusterRecord(
        fields["cluster"], fields["generation"], fields["primary"], fields["epoch"], tuple(members), claimed
    )
