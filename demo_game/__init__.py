"""The demo game, which uses only the public names of ``cml_engine`` and its scheduler."""

from time import perf_counter
from typing import Any

#: when the program began, by :func:`time.perf_counter`
STARTED = perf_counter()

import numpy as np  # noqa: E402

Array = np.ndarray[Any, Any]
