"""Files of arrays and pictures as the ``cml`` commands read and write them, and safe writes.

Inside, the engine reads and writes all files but models here.
"""

from typing import TYPE_CHECKING

from cml_engine.lazy import lazy_names

if TYPE_CHECKING:
    from cml_engine.io.arrays import check_place, read, write_outputs
    from cml_engine.io.atomic_write import write_atomically
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "cml_engine.io.arrays": "check_place read write_outputs",
            "cml_engine.io.atomic_write": "write_atomically",
        },
    )

__all__ = ["check_place", "read", "write_atomically", "write_outputs"]
