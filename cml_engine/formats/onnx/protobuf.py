"""Reads the wire format of Protocol Buffers: the fields of a message.

Strings and nested messages are views of the file, not copies. Every length is checked against
the enclosing message, so a damaged file raises an error and allocates nothing.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from cml_engine.errors import ModelError
from cml_engine.io.load_limits import current_budget
from cml_engine.ir.graph import Array

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIRE_NAMES = {VARINT: "a varint", FIXED64: "8 bytes", BYTES: "a length", FIXED32: "4 bytes"}
_MAX_VARINT_BYTES = 10
_SIGN, _WRAP = 1 << 63, 1 << 64
#: The fields per charge to the budget, and the microseconds per field.
_CHARGED, _FIELD_STEPS = 1024, 2
#: Bytes of packed numbers that are decoded at once.
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message: its number, its wire type, and an integer or the bytes of its value.

    With ``is_run`` it stands for consecutive fields of one number, whose keys are in ``data``.
    """

    number: int
    wire: int
    integer: int
    data: memoryview
    message: Message
    is_run: bool = False

    def whole(self) -> int:
        """Returns the field's signed integer of up to 64 bits; the last one of a run."""
        self._want(VARINT)
        if self.is_run:
            return int(self.wholes()[-1])
        return self.integer - _WRAP if self.integer >= _SIGN else self.integer

    def real(self) -> float:
        self._want(FIXED32)
        return float(struct.unpack("<f", self.data[-4:])[0])

    def view(self) -> memoryview:
        self._want(BYTES)
        return self.data

    def text(self) -> str:
        try:
            return str(self.view(), "utf-8")
        except UnicodeDecodeError:
            raise self.message.damaged("a text is not UTF-8") from None

    def nested(self) -> Message:
        """Returns the bytes of this field as a message."""
        self._want(BYTES)
        return self.message.inner(self.data)

    def wholes(self) -> Array:
        """Returns all integers of the field as an int64 array.

        The field has one value, a run of values, or many packed into one field.
        """
        if self.wire == VARINT and self.is_run:  # a one-byte key is a varint too
            return _unpack(np.frombuffer(self.data, np.uint8), self.message)[1::2]
        if self.wire == VARINT:
            return np.array([self.whole()], np.int64)
        return _unpack(np.frombuffer(self.view(), np.uint8), self.message)

    def listed(self) -> list[int]:
        """Returns all integers of the field as a list; its length is charged to the load budget."""
        ends = np.count_nonzero(np.frombuffer(self.data, np.uint8) < 0x80)
        count = int(ends) // 2 if self.is_run else int(ends)
        current_budget().charge_steps(count, f"'{self.message.file}': a list of numbers")
        return list(self.wholes().tolist())

    def numbers(self, dtype: str) -> Array:
        """Returns all floats of the field as an array of ``dtype``, ``<f4`` or ``<f8``.

        The field has one value, a run of values, or many packed into one field.
        """
        number_dtype = np.dtype(dtype)
        size = number_dtype.itemsize
        single = FIXED32 if size == 4 else FIXED64
        if self.wire == single and self.is_run:
            rows = np.frombuffer(self.data, np.uint8).reshape(-1, 1 + size)
            return np.ascontiguousarray(rows[:, 1:]).view(number_dtype).reshape(-1)
        if self.wire != single:
            self._want(BYTES)
        if len(self.data) % size:
            raise self.message.damaged(f"{len(self.data)} bytes of {size}-byte numbers")
        return np.frombuffer(self.data, number_dtype)

    def _want(self, wire: int) -> None:
        if self.wire != wire:
            expected, got = _WIRE_NAMES[wire], _WIRE_NAMES[self.wire]
            raise self.message.damaged(f"field {self.number} wants {expected}, got {got}")


@dataclass(frozen=True, slots=True)
class Message:
    """The bytes of a message; ``file`` is its file's name for errors, ``depth`` its nesting."""

    data: memoryview
    file: str
    depth: int = 0

    def inner(self, data: memoryview) -> Message:
        if self.depth >= MAX_DEPTH:
            raise self.damaged(f"messages nest more than {MAX_DEPTH} deep")
        return Message(data, self.file, self.depth + 1)

    def fields(self) -> Iterator[Field]:
        """Yields the message's fields in the order of the file.

        Raises an error if the bytes are damaged.
        """
        offset, view, count, budget = 0, self.data, 0, current_budget()
        while offset < len(view):
            count += 1
            if count % _CHARGED == 0:
                budget.charge_steps(_CHARGED * _FIELD_STEPS, f"'{self.file}': its fields")
            start = offset
            key, offset = _varint(view, offset, self)
            number, wire = key >> 3, key & 7
            if number == 0 or wire not in _WIRE_NAMES:
                raise self.damaged(f"field {number} of wire type {wire}")
            integer, size = 0, {FIXED64: 8, FIXED32: 4}.get(wire, 0)
            if wire == VARINT:
                integer, offset = _varint(view, offset, self)
            elif wire == BYTES:
                size, offset = _varint(view, offset, self)
            if size > len(view) - offset:
                n_left = len(view) - offset
                raise self.damaged(f"field {number} wants {size:,} bytes, {n_left:,} are left")
            offset += size
            if (
                wire != BYTES
                and view[offset : offset + 1] == view[start : start + 1]
                and key < 0x80
            ):
                run = _run_of(key, wire).match(view, start)
                assert run is not None
                offset = run.end()
                yield Field(number, wire, 0, view[start:offset], self, is_run=True)
                continue
            yield Field(number, wire, integer, view[offset - size : offset], self)

    def parts(self) -> MessageParts:
        """Returns the message's fields, grouped by number."""
        by_number: dict[int, list[Field]] = {}
        for f in self.fields():
            by_number.setdefault(f.number, []).append(f)
        return MessageParts(by_number)

    def damaged(self, defect: str) -> ModelError:
        message = (
            f"'{self.file}' is damaged or no ONNX model: {defect}: export or download it again"
        )
        return ModelError(message)


@dataclass(frozen=True, slots=True)
class MessageParts:
    """Fields of a message, grouped by number, with methods to read their values.

    If a single field occurs repeatedly, its last occurrence counts. A missing one is 0 or empty.
    """

    numbers: Mapping[int, Sequence[Field]]

    def of(self, number: int) -> Sequence[Field]:
        """Returns all fields with a number, in the order of the file; empty if there are none."""
        return self.numbers.get(number, ())

    def whole(self, number: int) -> int:
        fields = self.of(number)
        return fields[-1].whole() if fields else 0

    def texts(self, number: int) -> tuple[str, ...]:
        return tuple(f.text() for f in self.of(number))

    def text(self, number: int) -> str:
        fields = self.of(number)
        return fields[-1].text() if fields else ""

    def nested(self, number: int) -> list[Message]:
        return [f.nested() for f in self.of(number)]


#: the deepest nesting of messages; a graph in an If in a Loop is eight messages deeper
MAX_DEPTH = 100


@cache
def _run_of(key: int, wire: int) -> re.Pattern[bytes]:
    """Returns a pattern that matches consecutive fields with this one-byte key and wire type."""
    value = {FIXED32: rb"[\x00-\xff]{4}", FIXED64: rb"[\x00-\xff]{8}"}.get(
        wire, rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
    )
    return re.compile(b"(?:" + re.escape(bytes([key])) + value + b")++")


def _unpack(data: Array, message: Message) -> Array:
    """Returns packed varints as int64; ``message`` is for errors.

    Decodes them in blocks, because there may be millions.
    """
    count = int(np.count_nonzero(data < 0x80))
    current_budget().charge_bytes(8 * count, f"'{message.file}': a list of numbers")
    values, offset, n_decoded = np.empty(count, np.int64), 0, 0
    while offset < data.size:
        block = data[offset : offset + _BLOCK]
        ends = np.flatnonzero(block < 0x80)
        if not ends.size or (ends[-1] != block.size - 1 and offset + block.size == data.size):
            raise message.damaged("it ends within a number")
        values[n_decoded : n_decoded + ends.size] = _decode(block, ends, message)
        offset, n_decoded = offset + int(ends[-1]) + 1, n_decoded + ends.size
    return values


def _decode(block: Array, ends: Array, message: Message) -> Array:
    lengths = np.diff(ends, prepend=-1)
    if lengths.max() > _MAX_VARINT_BYTES:
        raise message.damaged(f"a number of more than {_MAX_VARINT_BYTES} bytes")
    values, starts = np.zeros(ends.size, np.uint64), ends - lengths + 1
    for byte_index in range(int(lengths.max())):
        is_long_enough = lengths > byte_index
        bits = (block[starts[is_long_enough] + byte_index] & 0x7F).astype(np.uint64)
        values[is_long_enough] |= bits << np.uint64(7 * byte_index)
    return values.view(np.int64)


def _varint(view: memoryview, offset: int, message: Message) -> tuple[int, int]:
    value = shift = 0
    for index in range(offset, min(offset + _MAX_VARINT_BYTES, len(view))):
        byte = view[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (_WRAP - 1), index + 1
        shift += 7
    if len(view) - offset < _MAX_VARINT_BYTES:
        raise message.damaged("it ends within a number")
    raise message.damaged(f"a number of more than {_MAX_VARINT_BYTES} bytes")
