"""What a certificate says of its owner, beside what OpenSSL's own tool and Proton say."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from qpid_ha_broker.server.runtime.certificates import is_for, subject_of


def certificate(directory: Path, subject: str, names: str = "") -> Path:
    made = directory / "made.pem"
    more = ("-addext", f"subjectAltName={names}") if names else ()
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(directory / "key"))
    subprocess.run(
        ["openssl", "req", "-x509", *key, "-out", str(made), "-days", "1", "-utf8", "-subj", subject, *more],
        check=True,
        capture_output=True,
        timeout=30,
    )
    return made


def der(file: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(file.read_text())


SUBJECTS = {
    "/CN=alice": "CN=alice",
    "/O=Orders, Inc./OU=a\\+b/CN=bob": r"CN=bob,OU=a\+b,O=Orders\, Inc.",
    "/CN=Zoë/C=CH": r"C=CH,CN=Zo\C3\AB",
    "/CN= padded /emailAddress=a@b.c": r"emailAddress=a@b.c,CN=\ padded\ ",
}


@pytest.mark.parametrize(("subject", "expected"), SUBJECTS.items())
def test_a_subject_is_written_as_openssl_does_by_rfc_2253(tmp_path: Path, subject: str, expected: str) -> None:
    made = certificate(tmp_path, subject)
    command = ["openssl", "x509", "-in", str(made), "-noout", "-subject", "-nameopt", "RFC2253"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
    assert subject_of(der(made)) == shown.removeprefix("subject=").rstrip("\n") == expected


@pytest.mark.parametrize(
    ("names", "host", "expected"),
    [
        ("DNS:node1.example.com", "node1.example.com", True),
        ("DNS:node1.example.com", "NODE1.example.com", True),
        ("DNS:node1.example.com", "node2.example.com", False),
        ("DNS:node1.example.com", "node1.example.com.evil.org", False),
        ("DNS:*.example.com", "node1.example.com", True),
        ("DNS:*.example.com", "a.node1.example.com", False),
        ("DNS:*.example.com", "example.com", False),
        ("IP:192.0.2.1", "192.0.2.1", True),
        ("IP:192.0.2.1", "192.0.2.2", False),
        ("IP:2001:db8::1", "2001:db8:0::1", True),
        ("DNS:192.0.2.1", "192.0.2.1", True),
        ("DNS:node1.example.com", "owner", True),
        ("", "owner", True),
        ("", "other", False),
    ],
)
def test_whom_a_certificate_is_for(tmp_path: Path, names: str, host: str, expected: bool) -> None:
    """By alternative names and addresses in it; and, as brokers of a release before had it, by an address that is
    written as a name, and by the common name."""
    assert is_for(der(certificate(tmp_path, "/CN=owner", names)), host) is expected


@pytest.mark.parametrize("data", [b"", b"\x30\x03\x02\x01\x01", bytes(200)])
def test_what_is_no_certificate_is_for_nobody(data: bytes) -> None:
    for read in (lambda: is_for(data, "localhost"), lambda: subject_of(data)):
        with pytest.raises(ValueError, match="no certificate"):
            read()
