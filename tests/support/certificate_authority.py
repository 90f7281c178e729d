"""Certificates that are made for one test run."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Authority:
    """A certificate authority of one test run. Its keys never leave the temporary directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.certificate = directory / "ca.pem"
        self._openssl(
            "req", "-x509", *self._new_key("ca"), "-out", str(self.certificate), "-days", "1", "-subj", "/CN=test CA"
        )

    def issue(self, name: str, days: int = 1) -> tuple[Path, Path]:
        """A certificate for `name`, and its key; -1: it expired yesterday."""
        request, certificate = self._directory / f"{name}.csr", self._directory / f"{name}.pem"
        extensions = self._directory / f"{name}.ext"
        extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n", encoding="ascii")
        self._openssl("req", *self._new_key(name), "-out", str(request), "-subj", f"/CN={name}")
        signing = ("-CA", str(self.certificate), "-CAkey", str(self._directory / "ca.key"), "-CAcreateserial")
        self._openssl(
            "x509",
            "-req",
            "-in",
            str(request),
            *signing,
            "-extfile",
            str(extensions),
            "-days",
            str(days),
            "-out",
            str(certificate),
        )
        return certificate, self._directory / f"{name}.key"

    def _new_key(self, name: str) -> tuple[str, ...]:
        return (
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-keyout",
            str(self._directory / f"{name}.key"),
        )

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=30)
