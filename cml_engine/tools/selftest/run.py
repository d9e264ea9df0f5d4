"""Runs the parts of a self-test one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from cml_engine.errors import DeviceError
from cml_engine.gpu.gpu import Gpu
from cml_engine.tools.selftest.context import SelfTest
from cml_engine.tools.selftest.cooked import check_cooked
from cml_engine.tools.selftest.frames import check_frames
from cml_engine.tools.selftest.kernels import check_kernels
from cml_engine.tools.selftest.networks import check_digests, check_networks, check_tuning
from cml_engine.tools.selftest.report import PartResult
from cml_engine.tools.selftest.sliders import check_sliders
from cml_engine.tools.selftest.transfers import check_loss, check_readbacks, check_textures

#: the parts by name, in their order
PARTS: dict[str, Callable[[SelfTest], None]] = {
    "kernels": check_kernels,
    "digests": check_digests,
    "cooked": check_cooked,
    "textures": check_textures,
    "readbacks": check_readbacks,
    "sliders": check_sliders,
    "loss": check_loss,
    "networks": check_networks,
    "tuning": check_tuning,
    "frames": check_frames,
}


def run(test: SelfTest, parts: Sequence[str] = tuple(PARTS)) -> None:
    """Runs these parts in order and writes the report after each.

    A part that ends with an error fails, and the next one gets a new device. Raises
    :class:`DeviceError` if there is none.
    """
    for number, name in enumerate(parts):
        test.show("parts", number, len(parts))
        test.part = PartResult(name)
        test.report.parts.append(test.part)
        test.begin(name)
        start = time.perf_counter()
        try:
            PARTS[name](test)
        except Exception as error:  # a driver may raise anything, and the next part may work
            if not isinstance(error, DeviceError) or not test.part.failed:
                test.part.fail(name, error)
            test.gpu = Gpu()
        test.part.seconds = round(time.perf_counter() - start, 2)
    test.begin("")
