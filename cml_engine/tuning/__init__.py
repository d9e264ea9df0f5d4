"""Measures which kernels are fastest on a device (:func:`tune`, :class:`Bench`).

The results are stored in a file per device and driver, which every session on the device uses.
See ``docs/faster.md``.
"""

from cml_engine.compiler.tuning_tables import Record, table_for
from cml_engine.tuning.trial import Trial
from cml_engine.tuning.tune import Bench, TrialNode, TuneReport, tune

__all__ = ["Bench", "TrialNode", "Record", "Trial", "TuneReport", "table_for", "tune"]
