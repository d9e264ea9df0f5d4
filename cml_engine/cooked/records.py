"""Declares binary records once, with a type, a meaning and reserved bytes for each field.

A declaration reads and writes the record in Python. ``generate.py`` makes the C structs, the
JavaScript readers and the tables of docs/cooked.md from the same declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from struct import Struct
from typing import ClassVar, Self, TypeVar, cast, dataclass_transform

from cml_engine.io.model_source import Bytes

_SIZES = {"B": 1, "I": 4, "Q": 8, "f": 4, "d": 8}


@dataclass(frozen=True, slots=True)
class RowField:
    """A field of a record.

    ``of`` is a letter of :mod:`struct` or the record that the field contains. ``count`` is the
    number of elements of an array, 0 for a single value. ``reserved`` zero bytes follow the field.
    """

    of: str | type[PackedRow]
    meaning: str
    count: int = 0
    reserved: int = 0
    name: str = ""
    offset: int = 0

    @property
    def element_size(self) -> int:
        return _SIZES[self.of] if isinstance(self.of, str) else self.of.SIZE

    @property
    def alignment(self) -> int:
        if isinstance(self.of, str):
            return _SIZES[self.of]
        return max(field.alignment for field in self.of.FIELDS)

    @property
    def size(self) -> int:
        """The bytes of the field without the reserved bytes after it."""
        return self.element_size * max(self.count, 1)


# The specifiers of fields return a RowField, which `PackedRow` replaces by the value of each row:
# their declared types are those of the values.


def u32(meaning: str, *, reserved: int = 0) -> int:
    return cast(int, RowField("I", meaning, reserved=reserved))


def u64(meaning: str, *, reserved: int = 0) -> int:
    return cast(int, RowField("Q", meaning, reserved=reserved))


def f32(meaning: str) -> float:
    return cast(float, RowField("f", meaning))


def f64(meaning: str) -> float:
    return cast(float, RowField("d", meaning))


def u32s(count: int, meaning: str, *, reserved: int = 0) -> tuple[int, ...]:
    return cast("tuple[int, ...]", RowField("I", meaning, count, reserved))


def u64s(count: int, meaning: str) -> tuple[int, ...]:
    return cast("tuple[int, ...]", RowField("Q", meaning, count))


def raw(count: int, meaning: str) -> bytes:
    return cast(bytes, RowField("B", meaning, count))


R = TypeVar("R", bound="PackedRow")


def nested(record: type[R], meaning: str, *, reserved: int = 0) -> R:
    return cast(R, RowField(record, meaning, reserved=reserved))


def nested_list(record: type[R], count: int, meaning: str) -> tuple[R, ...]:
    return cast("tuple[R, ...]", RowField(record, meaning, count))


@dataclass_transform(
    kw_only_default=True,
    field_specifiers=(u32, u64, f32, f64, u32s, u64s, raw, nested, nested_list),
)
class PackedRow:
    """The base class of the records of a cooked file: a fixed number of bytes, little-endian,
    naturally aligned.

    A subclass declares its fields as annotated class attributes.
    """

    FIELDS: ClassVar[tuple[RowField, ...]] = ()
    SIZE: ClassVar[int] = 0
    _struct: ClassVar[Struct]
    _take: ClassVar[tuple[tuple[str, Callable[[Iterator[int]], object]], ...]]

    def __init_subclass__(cls) -> None:
        fields, offset, letters = [], 0, "<"
        for name in cls.__annotations__:
            declared = cast(RowField, cls.__dict__[name])
            delattr(cls, name)
            field = RowField(
                declared.of, declared.meaning, declared.count, declared.reserved, name, offset
            )
            assert offset % field.alignment == 0, f"{cls.__name__}.{name} is not aligned"
            fields.append(field)
            offset += field.size + field.reserved
            letters += _letters(field)
        cls.FIELDS, cls.SIZE, cls._struct = tuple(fields), offset, Struct(letters)
        cls._take = tuple((field.name, _taker(field)) for field in fields)
        assert cls._struct.size == offset and offset % max(f.alignment for f in fields) == 0
        dataclass(kw_only=True)(cls)

    @classmethod
    def read(cls, data: Bytes, offset: int = 0) -> Self:
        """Returns the record at an offset of ``data``; raises ``ValueError`` if a reserved byte
        is not zero."""
        return cls._from_values(iter(cls._struct.unpack_from(data, offset)))

    @classmethod
    def _from_values(cls, values: Iterator[int]) -> Self:
        row = cls.__new__(cls)
        for name, take in cls._take:
            setattr(row, name, take(values))
        return row

    def to_bytes(self) -> bytes:
        """Returns the ``SIZE`` bytes of the record."""
        return self._struct.pack(*self._flat())

    def _flat(self) -> Iterator[object]:
        for field in self.FIELDS:
            value = getattr(self, field.name)
            if isinstance(field.of, str):
                yield from (value if field.count and field.of != "B" else (value,))
            else:
                for row in cast("tuple[PackedRow, ...]", value if field.count else (value,)):
                    yield from row._flat()
            if field.reserved:
                yield bytes(field.reserved)


def _letters(field: RowField) -> str:
    if field.of == "B":
        letters = f"{field.count}s"
    elif isinstance(field.of, str):
        letters = field.of * max(field.count, 1)
    else:
        letters = field.of._struct.format[1:] * max(field.count, 1)
    return letters + (f"{field.reserved}s" if field.reserved else "")


def _taker(field: RowField) -> Callable[[Iterator[int]], object]:
    """Returns a function that takes a field's value from an iterator over the unpacked numbers of a
    record.

    The function raises ``ValueError`` if a reserved byte after the field is not zero.
    """
    take: Callable[[Iterator[int]], object]
    if not isinstance(field.of, str):
        read_element, count = field.of._from_values, field.count
        take = (
            read_element
            if not count
            else lambda values: tuple(read_element(values) for _ in range(count))
        )
    elif field.count and field.of != "B":
        take = lambda values: tuple(islice(values, field.count))  # noqa: E731
    else:
        take = next
    if not field.reserved:
        return take

    def take_and_check(values: Iterator[int]) -> object:
        value = take(values)
        if any(cast(bytes, next(values))):
            raise ValueError(f"reserved bytes behind '{field.name}' are not zero")
        return value

    return take_and_check
