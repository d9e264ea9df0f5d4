"""How a tensor is a picture: its rows, columns and channels, and the numbers for each channel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from cml_engine.errors import InputError
from cml_engine.graph import Fact
from cml_engine.ranges import FINITE, one_of

#: where a tensor's channels stand: before its rows, or last
ImageLayout = Literal["nchw", "nhwc"]
#: the most channels of a picture
_MOST = 4


@dataclass(frozen=True, slots=True)
class Planes:
    """A tensor as a picture; ``strides`` are words from one channel, row and column to the next."""

    height: int
    width: int
    channels: int
    strides: tuple[int, int, int]

    @property
    def pixels(self) -> int:
        return self.height * self.width

    @property
    def interleaved(self) -> bool:
        """Whether a pixel's channels lie side by side."""
        return self.channels == 1 or self.strides[0] == 1


def planes(what: str, fact: Fact, layout: ImageLayout) -> Planes:
    """``fact`` as a picture; :class:`InputError` where it is none."""
    last = layout == "nhwc"
    shape = fact.shape if fact.rank != 2 else ((*fact.shape, 1) if last else (1, *fact.shape))
    *batch, a, b, c = shape if len(shape) >= 3 else (1, 1, 0)
    height, width, channels = (a, b, c) if last else (b, c, a)
    fits = fact.dtype == "scalar" and fact.rank <= 4 and batch in ([], [1])
    if not (fits and fact.size and 1 <= channels <= _MOST):
        wanted = "scalar[1,H,W,C]" if last else "scalar[1,C,H,W]"
        other = "nchw" if last else "nhwc"
        raise InputError(
            f"{what} is {fact}: a texture holds {wanted} with 1 to {_MOST} channels. Where the "
            f"channels stand elsewhere, say layout='{other}'"
        )
    strides = (1, width * channels, channels) if last else (height * width, width, 1)
    return Planes(height, width, channels, strides)


#: a number, or one for each channel
Numbers = float | Iterable[float]


def by_channel(value: Numbers, count: int, what: str) -> tuple[float, ...]:
    """A number for each of four channels: the same for all, or ``count`` that are given."""
    numbers = numbers_of(value, what)
    if len(numbers) not in (1, count):
        raise InputError(f"{what}: wanted a number, or {count} for {count} channels, got {value}")
    return ((numbers * _MOST) if len(numbers) == 1 else (*numbers, 0.0, 0.0, 0.0))[:_MOST]


def numbers_of(value: Numbers, what: str) -> tuple[float, ...]:
    """The number, or the numbers, as a tuple."""
    given: Any = value
    given = given if np.ndim(given) else (given,)
    return tuple(FINITE.check(number, what) for number in given)


def checked_layout(value: Any) -> None:
    one_of(get_args(ImageLayout), value, "layout")
