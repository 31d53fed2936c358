"""Where a compiled program keeps its temporary values, and which instruction stores the largest one at each offset.

XLA allocates temporary values in one block of memory, and reuses space when the value there is no longer needed. Each
byte of the block is attributed to the largest value ever stored there, for which XLA reserved it; so the bytes of all
instructions add up to the size of the block.

XLA reports this in protocol buffers. Only the few fields that are needed are read, by their numbers:
``BufferAssignmentProto`` in ``xla/service/hlo.proto``, and names and ids of instructions in ``HloModuleProto``.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any


def temporary_bytes(assignment: bytes, program: bytes) -> dict[str, int]:
    """Bytes of the block of temporary values by the name of the instruction; ``""`` for bytes that no value covers."""
    names = _instruction_names(program)
    owners: dict[int, int] = {}
    for number, value in _fields(assignment):
        if number == 1:  # a value: its id, and where it is defined
            buffer = dict(_fields(value))
            owners[buffer.get(1, 0)] = dict(_fields(buffer.get(3, b""))).get(4, 0)
    found: collections.Counter[str] = collections.Counter()
    for number, value in _fields(assignment):
        if number == 3:
            allocation = list(_fields(value))
            if not {each for each, flag in allocation if flag} & _NOT_TEMPORARY:
                size = dict(allocation).get(2, 0)
                assigned = [dict(_fields(part)) for each, part in allocation if each == 9]
                places = [(part.get(3, 0), part.get(2, 0), owners.get(part.get(1, 0), 0)) for part in assigned]
                for owner, count in _largest_values(size, places).items():
                    found[names.get(owner, "")] += count
    return dict(found)


# Of an allocation: belongs to a thread, is an argument, is returned, is a constant.
_NOT_TEMPORARY = {3, 5, 7, 12}


def _largest_values(size: int, places: list[tuple[int, int, int]]) -> dict[int, int]:
    """Owner → bytes, where each byte belongs to the largest of the values ``(size, offset, owner)`` that cover it."""
    found: collections.Counter[int] = collections.Counter()
    free = [(0, size)]
    for length, offset, owner in sorted(places, reverse=True):
        rest = []
        for start, end in free:
            first, last = max(start, offset), min(end, offset + length)
            if first >= last:
                rest.append((start, end))
                continue
            found[owner] += last - first
            rest += [(a, b) for a, b in ((start, first), (last, end)) if a < b]
        free = rest
    found[-1] += sum(end - start for start, end in free)
    return {owner: count for owner, count in found.items() if count}


def _instruction_names(program: bytes) -> dict[int, str]:
    """Id → name. The assignment refers to an instruction by its id, alone or with the id of its computation."""
    found = {}
    for number, computation in _fields(program):
        if number == 3:
            parts = list(_fields(computation))
            place = next((value for each, value in parts if each == 5), 0)
            for each, instruction in parts:
                if each == 2:
                    entries = dict(_fields(instruction))
                    name, own = bytes(entries.get(1, b"")).decode(), entries.get(35, 0)
                    found[own] = found[(place << 32) | (own & 0xFFFFFFFF)] = name
    return found


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The entries of a protocol buffer: number, and a number or bytes."""
    place, end = 0, len(message)
    while place < end:
        key, place = _number(message, place)
        kind = key & 7
        if kind == 0:
            value, place = _number(message, place)
        else:
            length = {1: 8, 5: 4}.get(kind, 0)
            if kind == 2:
                length, place = _number(message, place)
            value, place = message[place : place + length], place + length
        yield key >> 3, value


def _number(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
