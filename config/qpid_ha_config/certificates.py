"""From when until when certificates in PEM form are valid, without a library for X.509: two fields of DER are read.

Shapes: RFC 5280, section 4.1 (TBSCertificate, Validity); X.690, 8.1 (tag, length, contents). Pure.
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime
from typing import Final, NamedTuple

_BLOCK: Final = re.compile(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


class CertificateError(Exception):
    """The text has no certificate, or one that cannot be read."""


class Validity(NamedTuple):
    """When a certificate is valid, in seconds since the epoch."""

    begins_s: float
    ends_s: float
    """The first second in which it is not valid any more."""

    def problem(self, now_s: float) -> str:
        """Why it is not valid at `now_s`, with the date; empty: it is."""
        if now_s < self.begins_s:
            return f"it is not valid before {_shown(self.begins_s)}: correct the clock of this machine, or wait"
        if now_s >= self.ends_s:
            return f"it expired at {_shown(self.ends_s - 1)}: renew it"
        return ""


def validities(pem: str) -> list[Validity]:
    """Of each certificate in it. Raises CertificateError."""
    try:
        periods = [_validity(base64.b64decode("".join(block.split()), validate=True)) for block in _BLOCK.findall(pem)]
    except (ValueError, IndexError, binascii.Error) as error:
        raise CertificateError(f"it holds a certificate that cannot be read: {error}") from None
    if not periods:
        raise CertificateError("it holds no certificate in PEM form")
    return periods


def _shown(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _validity(der: bytes) -> Validity:
    """Raises ValueError, IndexError."""
    certificate = _contents(der, 0, _SEQUENCE)
    signed = _contents(certificate, 0, _SEQUENCE)
    at = _after(signed, 0) if signed[0] == _VERSION else 0
    for _ in ("serial number", "signature", "issuer"):
        at = _after(signed, at)
    validity = _contents(signed, at, _SEQUENCE)
    return Validity(_time_s(validity, 0), _time_s(validity, _after(validity, 0)) + 1)


def _time_s(data: bytes, at: int) -> float:
    tag, start, end = _element(data, at)
    text = data[start:end].decode("ascii")
    if tag == _UTC_TIME:  # two digits of the year: 50 is 1950
        text = f"{'19' if text[:2] >= '50' else '20'}{text}"
    elif tag != _GENERALIZED_TIME:
        raise ValueError("its validity is no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _contents(data: bytes, at: int, wanted: int) -> bytes:
    tag, start, end = _element(data, at)
    if tag != wanted:
        raise ValueError("it is not made as a certificate is")
    return data[start:end]


def _after(data: bytes, at: int) -> int:
    return _element(data, at)[2]


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """Tag, and where its contents begin and end."""
    tag, length, start = data[at], data[at + 1], at + 2
    if length & 0x80:
        octets = length & 0x7F
        length, start = int.from_bytes(data[start : start + octets], "big"), start + octets
    if start + length > len(data):
        raise ValueError("it was cut off")
    return tag, start, start + length
