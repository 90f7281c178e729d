"""How the kernel is built: `setup.py` has cffi read `builder` here; run as a program it builds one beside its sources.

usage: build.py [--sanitize] [DIRECTORY]

Each part is NAME.c and NAME.h. cffi reads the declarations of NAME.h too: no directives but `#define NAME NUMBER`, no
includes, no guards. All parts are one unit for the compiler. Without a compiler the installation goes on (`optional`).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
PARTS = ("deliveries", "frames", "scan")
"""In the order in which they are compiled."""
HEADERS = ("version", *PARTS)
_FLAGS = ("-std=gnu11", "-O2", "-fvisibility=hidden")
_SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1")
_SYSTEM_HEADERS = ("stddef.h", "stdint.h", "stdbool.h", "string.h", "sys/types.h")


def make_builder(*, sanitize: bool = False) -> FFI:
    """What makes the extension `qpid_ha_kernel._kernel`. `sanitize`: with what stops at undefined behaviour."""
    made = FFI()
    for name in HEADERS:
        made.cdef((HERE / f"{name}.h").read_text(encoding="utf-8"))
    included = [f"<{name}>" for name in _SYSTEM_HEADERS]
    included += [f'"{name}.h"' for name in HEADERS] + [f'"{name}.c"' for name in PARTS]
    made.set_source(
        "qpid_ha_kernel._kernel",
        "".join(f"#include {name}\n" for name in included),
        include_dirs=[str(HERE)],
        depends=[str(HERE / name) for part in PARTS for name in (f"{part}.c", f"{part}.h")],
        extra_compile_args=[*_FLAGS, *(_SANITIZED if sanitize else ())],
        extra_link_args=list(_SANITIZED[:1] if sanitize else ()),
        py_limited_api=True,
        optional=not sanitize,
    )
    return made


builder = make_builder()


def main() -> None:
    """Build one, and print where it is."""
    parser = argparse.ArgumentParser(description="build the kernel")
    parser.add_argument("--sanitize", action="store_true", help="with address and undefined-behaviour sanitizers")
    parser.add_argument("directory", nargs="?", type=Path, default=HERE, help="of the package that is to have it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        built = Path(make_builder(sanitize=arguments.sanitize).compile(tmpdir=work))
        made = shutil.copy(built, arguments.directory / f"{built.name}.new")
        print(Path(made).replace(arguments.directory / built.name))  # those who run the one before keep it


if __name__ == "__main__":
    main()
