"""The process that folds old segments beside a broker: `python -m qpid_ha_broker.store.consolidator DIR --upto N`.

It makes one file, `snapshots/N.snap`, and touches nothing else: the broker deletes what the snapshot replaces once this
has ended with 0. It runs with little priority and is a process of its own because it would hold the interpreter.

Says on its standard output, as one JSON object, what came of it; on standard error why nothing did. Ends with 0 when
the snapshot is there, 1 when these segments cannot be folded, 2 when the store is damaged or cannot be read or written.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .errors import StoreError
from .files import LocalDisk
from .fold import FoldError, fold
from .journal import Identity
from .layout import segment_path
from .reading import header_of

NICENESS: Final = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Fold the segments that the arguments name; returns the exit code."""
    parser = argparse.ArgumentParser(prog="qpid_ha_broker.store.consolidator", description="Fold old segments.")
    parser.add_argument("directory", type=Path, help="of the store, with journal/ and snapshots/ in it")
    parser.add_argument("--upto", type=int, required=True, help="the first segment that is not folded")
    given = parser.parse_args(arguments)
    disk = LocalDisk(given.directory)
    try:
        header = header_of(disk, segment_path(given.upto))
        folded = fold(disk, given.upto, Identity(header.cluster, header.broker, header.set))
    except FoldError as error:
        print(error, file=sys.stderr)
        return 1
    except (StoreError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(folded._asdict()))
    return 0


if __name__ == "__main__":
    os.nice(NICENESS)
    gc.disable()  # it makes no cycles, and ends when it is done
    sys.exit(main())
