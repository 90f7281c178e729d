"""Where the fields of a record lie is said in `events.layout` alone: no format, offset or kind is spelled elsewhere.

The modules are read, not imported. What is allowed beside it is not about records, and says what it is about.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from qpid_ha_broker.events.layout import HEADER, IDS, PLAIN, RecordKind

ROOT = Path(__file__).resolve().parents[2]
BROKER, PIPELINE = ROOT / "broker" / "qpid_ha_broker", ROOT / "pipeline" / "qpid_ha_pipeline"
WITH_RECORDS = (BROKER / "events", BROKER / "model", BROKER / "store", BROKER / "ha", PIPELINE / "journal")
LAYOUT = BROKER / "events" / "layout.py"
FRAMES = {BROKER / "ha" / "frame_codec.py", BROKER / "ha" / "bundles.py", BROKER / "ha" / "forward_frames.py"}
# Single values. Blocks and headers of files, and frames between brokers, are tables.
MAY_PACK = {LAYOUT, BROKER / "events" / "fields.py"}
# These have numbers of their own that look like kinds: of frames, and of AMQP's types in a payload.
OTHER_KINDS = {
    LAYOUT,
    *FRAMES,
    PIPELINE / "journal" / "messages.py",
    PIPELINE / "journal" / "sections.py",
}
PACKING = {"Struct", "pack", "pack_into", "unpack", "unpack_from", "iter_unpack", "calcsize"}
OFFSETS = {*PLAIN.offsets.values(), *IDS.offsets.values(), HEADER.end, IDS.end} - {0, 4}


def private_structs(tree: ast.AST) -> Iterator[int]:
    """Lines that pack or unpack with a format of their own."""
    for node in ast.walk(tree):
        imported = {one.name for one in node.names} if isinstance(node, ast.ImportFrom) else set()
        if PACKING & imported and getattr(node, "module", "") == "struct":
            yield node.lineno  # type: ignore[attr-defined]  # an import has one
        elif isinstance(node, ast.Attribute) and node.attr in PACKING and getattr(node.value, "id", "") == "struct":
            yield node.lineno


def is_kind(source: str, node: ast.AST) -> bool:
    """Whether it is the number of a kind, spelled as one."""
    if not isinstance(node, ast.Constant) or type(node.value) is not int or node.value not in set(RecordKind):
        return False
    return (ast.get_source_segment(source, node) or "").lower().startswith("0x")


def literal_kinds(source: str, tree: ast.AST) -> Iterator[int]:
    """Lines with the number of a kind in hexadecimal, or where something called a kind is compared with any number."""
    for node in ast.walk(tree):
        if is_kind(source, node):
            yield node.lineno  # type: ignore[attr-defined]  # a constant has one
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            names = {getattr(side, "id", getattr(side, "attr", "")) for side in sides}
            if names & {"kind", "kinds"} and any(isinstance(getattr(side, "value", ""), int) for side in sides):
                yield node.lineno


def literal_offsets(tree: ast.AST) -> Iterator[int]:
    """Lines that add the offset of a field, as a number, where bytes are taken out of something."""
    for node in ast.walk(tree):
        places: list[ast.expr] = []
        if isinstance(node, ast.Subscript):
            places = [node.slice]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in {"unpack_from", "field"}:
            places = list(node.args)
        for place in places:
            for part in ast.walk(place):
                operands = [part.left, part.right] if isinstance(part, ast.BinOp) else []
                if any(isinstance(each, ast.Constant) and each.value in OFFSETS for each in operands):
                    yield part.lineno  # type: ignore[attr-defined]  # an operation has one


def violations(path: Path, source: str) -> list[str]:
    tree, found = ast.parse(source), list[tuple[int, str]]()
    if path not in MAY_PACK:
        found += [(line, "packs with a format of its own") for line in private_structs(tree)]
    if path not in OTHER_KINDS:
        found += [(line, "has a kind as a number") for line in literal_kinds(source, tree)]
    if path not in MAY_PACK:
        found += [(line, "has an offset as a number") for line in literal_offsets(tree)]
    return [f"{path.relative_to(ROOT)}:{line}: {text}: use events.layout" for line, text in sorted(found)]


def test_no_module_but_one_spells_the_layout_of_a_record() -> None:
    paths = [path for package in WITH_RECORDS for path in sorted(package.rglob("*.py"))]
    assert len(paths) > 100
    found = [text for path in paths for text in violations(path, path.read_text(encoding="utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        'HEAD = struct.Struct("<IIQBBH")',
        "from struct import Struct, error",
        'size = struct.unpack_from("<I", data, at)[0]',
        "ENQUEUED = 0x20",
        "is_message = kind == 32",
        "found = 33 != record.kind",
        "sealed = data[at + 8 : end]",
        "durable = flags.unpack_from(data, at + 20)",
    ],
)
def test_what_spells_it_anew_is_found_with_its_line(line: str) -> None:
    (found,) = violations(BROKER / "store" / "other.py", f"import struct\n\n{line}\n")
    assert found.startswith("broker/qpid_ha_broker/store/other.py:3: ")


@pytest.mark.parametrize("line", ["count = 8 * queues", "raise struct.error", "room = data[at + 512 :]", "BITS = 0x08"])
def test_other_numbers_are_left_alone(line: str) -> None:
    assert violations(BROKER / "store" / "other.py", f"import struct\n\n{line}\n") == []
