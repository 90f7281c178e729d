"""What a diagnosis looks at on the machine of a broker: the disk of its data, and its certificates. A disk may hang."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from qpid_ha_broker.diagnosis.facts import CertificateEnd, MachineState
from qpid_ha_config.certificates import CertificateError, validities

CERTIFICATES: Final = ("tls.certificate", "tls.ca", "ha.coordinator-certificate", "ha.coordinator-ca")
"""The settings that name some."""


def with_disk(state: MachineState, data_dir: Path) -> MachineState:
    """`state`, with what the file system there has. Raises OSError; where there is no such directory a broker makes it
    when it starts."""
    state = replace(state, data_dir=str(data_dir))
    try:
        filesystem = os.statvfs(data_dir)
    except FileNotFoundError:
        return state
    return replace(
        state,
        free_bytes=filesystem.f_bavail * filesystem.f_frsize,
        total_bytes=filesystem.f_blocks * filesystem.f_frsize,
        is_read_only=bool(filesystem.f_flag & os.ST_RDONLY),
        discarded_files=_count_discarded(data_dir),
    )


def _count_discarded(data_dir: Path) -> int:
    """Raises OSError."""
    directory = data_dir / "discarded"
    return sum(1 for path in directory.rglob("*.log")) if directory.is_dir() else 0


class CertificateLook(NamedTuple):
    """What was read of certificates; `problems`: what could not be, by its setting and file, and why."""

    ends: tuple[CertificateEnd, ...]
    problems: Mapping[str, str]


def look_at_certificates(paths: Mapping[str, Path]) -> CertificateLook:
    """By the setting of CERTIFICATES. The first of each file is the one that counts; of a file with many authorities
    nobody can tell which does."""
    ends: list[CertificateEnd] = []
    problems: dict[str, str] = {}
    for key, path in paths.items():
        try:
            periods = validities(path.read_text(encoding="ascii", errors="replace"))
        except (OSError, CertificateError) as error:
            problems[f"{key} {path}"] = getattr(error, "strerror", None) or str(error)
            continue
        if len(periods) == 1 or key.endswith("certificate"):
            ends.append(CertificateEnd(str(path), periods[0].ends_s, periods[0].begins_s))
    return CertificateLook(tuple(ends), problems)
