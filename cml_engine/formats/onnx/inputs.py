"""Determines the shapes of an ONNX graph's inputs, from the file and from the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cml_engine.errors import InputError, ModelError, OpenShape, UnsupportedOp
from cml_engine.errors.arguments import check_inputs_exist, resolve_shapes
from cml_engine.formats.builder import ImportBuilder
from cml_engine.formats.onnx.model import Dim, ValueInfo
from cml_engine.formats.onnx.tensors import element_dtype
from cml_engine.formats.onnx.values import Value, kind_of
from cml_engine.ir.graph import Array, DType, Fact, can_be_shape
from cml_engine.nnef.warning import warn


def bind_inputs(
    inputs: Sequence[ValueInfo],
    shapes: Mapping[str, tuple[int, ...]],
    constants: Mapping[str, Array],
    builder: ImportBuilder,
    file: str,
) -> dict[str, Value]:
    """Returns a value for every input, by name, and adds the inputs to ``builder``.

    An input named in ``constants`` has a known value; the others are tensors of the given
    shapes, or of the file's.
    """
    infos = {info.name: info for info in inputs}
    check_inputs_exist(constants, infos, file)
    shapes = resolve_shapes(shapes, infos, file)
    symbols = _symbols(inputs, shapes, file)
    values: dict[str, Value] = {}
    for info in inputs:
        dtype = _dtype(info, file)
        if info.name in values:
            raise ModelError(f"'{file}': two inputs are called '{info.name}': export it again")
        if info.name in constants:
            array = _constant(info, np.asarray(constants[info.name]), shapes, file)
            values[info.name] = Value.known(_convert_constant(array, dtype, info, file))
            continue
        if dtype == np.float64:
            warn(f"'{file}': input '{info.name}' is float64, and the network computes with float32")
        shape = _shape(info, shapes, symbols, file)
        builder.exact_input(info.name, Fact(kind_of(dtype), shape))
        values[info.name] = Value(dtype, shape, None, info.name)
    return values


def _constant(
    info: ValueInfo, array: Array, shapes: Mapping[str, Sequence[int]], file: str
) -> Array:
    """Checks the value given for a constant input and returns it.

    A single number is reshaped to a shape of 1s.
    """
    if array.ndim == 0 and all(dim == 1 or not isinstance(dim, int) for dim in info.shape or ()):
        array = array.reshape([1] * len(info.shape or ()))
    if info.shape is not None and array.ndim != len(info.shape):
        raise InputError(
            f"'{file}': the constant '{info.name}' has rank {array.ndim}, the model wants {info}"
        )
    if info.name in shapes and array.shape != tuple(shapes[info.name]):
        raise InputError(
            f"'{file}': the constant '{info.name}' has the shape {list(array.shape)}, and shapes= "
            f"says {list(shapes[info.name])}: leave it out of shapes="
        )
    return array


def _convert_constant(array: Array, dtype: DType, info: ValueInfo, file: str) -> Array:
    """Returns a constant converted to the type that the model declares.

    Raises :class:`InputError` if the conversion changes a value of an integer or logical type.
    """
    is_number = array.dtype.kind in "biuf"
    with np.errstate(all="ignore"):
        converted = array.astype(dtype) if is_number else array
    if not is_number or (dtype.kind != "f" and not np.array_equal(converted, array)):
        raise InputError(
            f"'{file}': the constant '{info.name}' has values that are no {info.type_name}: wanted "
            f"{info}"
        )
    return converted


def _symbols(
    inputs: Sequence[ValueInfo], shapes: Mapping[str, Sequence[int]], file: str
) -> dict[str, int]:
    """Returns the extents of symbolic dimensions, by symbol, that the given shapes determine.

    Raises :class:`InputError` if two shapes disagree.
    """
    extents: dict[str, int] = {}
    for info in inputs:
        requested_shape = shapes.get(info.name)
        if requested_shape is None or info.shape is None:
            continue
        if len(requested_shape) != len(info.shape):
            raise InputError(
                f"'{file}': the shape {list(requested_shape)} of '{info.name}' has "
                f"{len(requested_shape)} extents, the model wants {info}"
            )
        for dim, extent in zip(info.shape, requested_shape, strict=True):
            if isinstance(dim, str) and extents.setdefault(dim, int(extent)) != int(extent):
                raise InputError(
                    f"the shapes give '{dim}' as {extents[dim]} and as {extent}: '{file}' wants one"
                )
    return extents


def input_dtype(info: ValueInfo) -> DType | None:
    """Returns the NumPy type of an input, or None if it is no tensor of numbers."""
    return element_dtype(info.element) if info.kind == "tensor" else None


def _dtype(info: ValueInfo, file: str) -> DType:
    dtype = input_dtype(info)
    if dtype is None:
        type_text = info.type_name if info.kind == "tensor" else info.kind
        raise UnsupportedOp(
            f"'{file}': input '{info.name}' is {type_text}: wanted a tensor of floats, integers or "
            "truth values"
        )
    return dtype


def _shape(
    info: ValueInfo, shapes: Mapping[str, Sequence[int]], symbols: Mapping[str, int], file: str
) -> tuple[int, ...]:
    dims: list[Dim] | None = None
    if info.name in shapes:
        dims = [int(n) for n in shapes[info.name]]
    elif info.shape is not None:
        dims = [symbols.get(d, d) if isinstance(d, str) else d for d in info.shape]
    extents = tuple(d for d in dims or () if isinstance(d, int))
    if dims is None or len(extents) < len(dims):
        raise _open_shape_error(info, dims, file)
    if not can_be_shape(extents):
        raise InputError(f"'{file}': input '{info.name}' has the shape {list(extents)[:8]}")
    return extents


def _open_shape_error(info: ValueInfo, dims: Sequence[Dim] | None, file: str) -> OpenShape:
    open_part, sample, partial_shape = "its rank", "1,3,64,64", None
    if dims is not None:
        unknown = dict.fromkeys(d for d in dims if not isinstance(d, int))
        open_part = ", ".join(f"'{d}'" if d else "an extent" for d in unknown)
        sample = ",".join(str(d) if isinstance(d, int) else str(d or "N") for d in dims)
        partial_shape = tuple(d if isinstance(d, int) else None for d in dims)
    return OpenShape(
        f"'{file}': input '{info.name}' is {info}, which leaves {open_part} open: say "
        f"--shape {info.name}={sample} with numbers, or cml.load(…, shapes={{'{info.name}': …}})",
        info.name,
        partial_shape,
    )
