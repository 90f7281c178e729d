"""Writes the archive: all of it or nothing, and for nobody else's eyes."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from qpid_ha_agent.support.redaction import Redaction

MODE: Final = 0o600
MOST_BYTES: Final = 2 * 1024 * 1024
"""Of each file, before it is compressed."""


@dataclass
class BundleFiles:
    """The promise: what is in here went through the redaction, and no file is larger than `MOST_BYTES`."""

    redaction: Redaction
    files: dict[str, bytes] = field(default_factory=dict)
    """Contents by path within the archive."""
    cut: dict[str, str] = field(default_factory=dict)
    """What was left out of a file."""
    missing: dict[str, str] = field(default_factory=dict)
    """What could not be had, and why."""

    def add_text(self, path: str, text: str) -> None:
        """Of a text that is too long, the end is kept."""
        content = self.redaction.text(text).encode("utf-8", "backslashreplace")
        if len(content) > MOST_BYTES:
            self.cut[path] = f"the first {len(content) - MOST_BYTES} of {len(content)} bytes"
            content = content[-MOST_BYTES:].partition(b"\n")[2]
        self.files[path] = content

    def add_document(self, path: str, document: object) -> None:
        """As JSON. Of a list that is too long, the beginning is kept; anything else that is too long is left out."""
        clean = self.redaction.document(document)
        content = _encode(clean)
        if len(content) > MOST_BYTES and isinstance(clean, list):
            count = len(clean)
            while len(content) > MOST_BYTES:
                clean = clean[: len(clean) // 2]
                content = _encode(clean)
            self.cut[path] = f"all but the first {len(clean)} of {count} entries"
        if len(content) > MOST_BYTES:
            self.lack(path, f"it has {len(content)} bytes, and {MOST_BYTES} are the most")
            return
        self.files[path] = content

    def lack(self, subject: str, why: str) -> None:
        """Say in the archive that `subject` could not be had."""
        self.missing[self.redaction.text(subject)] = self.redaction.text(why)


def write_archive(path: Path, bundle: BundleFiles, about: Mapping[str, object], now_s: float) -> None:
    """A tar.gz at `path`, with `index.json` first. Raises OSError, FileExistsError where there is one already."""
    if os.path.lexists(path):
        raise FileExistsError(17, "it is there already", str(path))
    root = path.name.partition(".tar")[0]
    index = {
        **about,
        "files": {name: {"bytes": len(content)} for name, content in sorted(bundle.files.items())},
        "cut": bundle.cut,
        "missing": bundle.missing,
    }
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            os.fchmod(descriptor, MODE)
            with gzip.GzipFile("", "wb", fileobj=opened, mtime=int(now_s)) as packed:
                _write_tar(packed, root, [("index.json", _encode(index)), *sorted(bundle.files.items())], now_s)
            opened.flush()
            os.fsync(descriptor)
        beside.rename(path)
    finally:
        beside.unlink(missing_ok=True)


def _write_tar(packed: gzip.GzipFile, root: str, files: Sequence[tuple[str, bytes]], now_s: float) -> None:
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files:
            entry = tarfile.TarInfo(f"{root}/{name}")
            entry.size, entry.mode, entry.mtime = len(content), MODE, int(now_s)
            archive.addfile(entry, io.BytesIO(content))


def _encode(document: object) -> bytes:
    return json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
