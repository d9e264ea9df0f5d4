"""Which kernels are fastest on a device: measured (:func:`tune`, :class:`Bench`), kept in a file
for each device and driver, and taken by every session on it. See ``docs/faster.md``.
"""

from cml_engine.compiler.tuning_tables import Record, table_for
from cml_engine.runtime.tuning.bench import Bench, TrialNode
from cml_engine.runtime.tuning.report import TuneReport
from cml_engine.runtime.tuning.trial import Trial
from cml_engine.runtime.tuning.tune import tune

__all__ = ["Bench", "TrialNode", "Record", "Trial", "TuneReport", "table_for", "tune"]
