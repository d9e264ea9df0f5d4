"""Files of arrays and pictures as the ``cml`` commands read and write them, and safe writes.

Inside, the engine reads and writes all files but models here.
"""

from typing import TYPE_CHECKING

from cml_engine.lazy import lazy_names

if TYPE_CHECKING:
    from cml_engine.io.arrays import (
        check_place as check_place,
        read as read,
        write_outputs as write_outputs,
    )
    from cml_engine.io.atomic_write import write_atomically as write_atomically
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "cml_engine.io.arrays": "check_place read write_outputs",
            "cml_engine.io.atomic_write": "write_atomically",
        },
    )
