"""The state of a self-test that its parts share: the device, the report, and how checks fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cml_engine.errors import DeviceError
from cml_engine.tools.selftest.report import PartResult, SelfTestReport

if TYPE_CHECKING:
    from cml_engine.gpu.gpu import Gpu


class CheckFailed(Exception):
    """The error of a check whose result is wrong."""


def expect(is_right: bool, problem: str) -> None:
    """Raises :class:`CheckFailed` unless a result is right; ``python -O`` drops no check."""
    if not is_right:
        raise CheckFailed(problem)


@dataclass
class SelfTest:
    """A self-test of a device.

    Parameters
    ----------
    file : the report's file, which is written after every part.
    quick : leave out most cases.
    operators : the names of the operators whose kernels are checked; all if it is empty.
    models : model files to check besides the test's own networks.
    show : shows the progress of a part: its name, the finished checks, and all of them.
    """

    file: Path
    gpu: Gpu
    report: SelfTestReport
    quick: bool = False
    operators: Sequence[str] = ()
    models: Sequence[str] = ()
    show: Callable[[str, int, int], None] = lambda part, done, total: None
    part: PartResult = field(default_factory=lambda: PartResult(""))

    def begin(self, subject: str) -> None:
        """Writes to the file what runs from now on."""
        self.report.running = subject
        self.report.save(self.file)

    @contextmanager
    def check(self, subject: str | Callable[[], str]) -> Iterator[None]:
        """Counts a check; an error in the ``with`` block is a failure with ``subject`` before it.

        ``subject`` may be a function that returns the text. A :class:`DeviceError` is raised again,
        because nothing can run after it.
        """
        self.part.checks += 1
        try:
            yield
        except Exception as error:  # a driver may raise anything
            self.part.fail(subject if isinstance(subject, str) else subject(), error)
            if isinstance(error, DeviceError):
                raise
