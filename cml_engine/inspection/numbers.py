"""What the numbers of a tensor are like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Numbers:
    """``low``, ``high`` and ``mean`` are of the finite ones, None where there is none."""

    low: float | None
    high: float | None
    mean: float | None
    nan: int
    inf: int
    zeros: int

    @classmethod
    def of(cls, array: Array) -> Numbers:
        nan = int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0
        inf = int(np.isinf(array).sum()) if array.dtype.kind == "f" else 0
        finite = array[np.isfinite(array)] if nan or inf else array
        zeros = int(array.size - np.count_nonzero(array))
        if not finite.size:
            return cls(None, None, None, nan, inf, zeros)
        mean = float(finite.mean(dtype=np.float64))
        return cls(float(finite.min()), float(finite.max()), mean, nan, inf, zeros)

    def row(self) -> dict[str, Any]:
        """For an index."""
        return {
            "min": self.low,
            "max": self.high,
            "mean": self.mean,
            "nan": self.nan,
            "inf": self.inf,
        }

    def __str__(self) -> str:
        said = [] if self.low is None else [f"min {self.low:.6g}, max {self.high:.6g}"]
        counts = ((self.zeros, "zeros"), (self.nan, "NaN"), (self.inf, "infinite"))
        return ", ".join([*said, *(f"{count} {what}" for count, what in counts if count)])
