"""Compiles a new network for a session while the old one keeps running."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any, Literal, Protocol

from cml_engine.errors import CmlError, InputError
from cml_engine.io.frame_gate import frame_gate
from cml_engine.ir.graph import Graph

State = Literal["compiling", "preparing", "done", "failed", "superseded"]


#: the interpreter's switch interval in seconds while a network is compiled. A frame releases the
#: GIL at every call of the driver, and would wait Python's default of 5 ms each time to get it back
_YIELD_S = 2e-5


class PendingProgram(Protocol):
    """A compiled program that the session does not use yet."""

    @property
    def prepared(self) -> bool: ...
    def prepare(self, budget_ms: float) -> None: ...
    def load(self) -> None: ...


class Replacement:
    """A network that a thread compiles and that is then prepared to replace a session's network.

    Creating it starts the thread. :attr:`state` may be read at any time. If it is ``"failed"``,
    :attr:`error` holds the reason and the session keeps its old network.

    Examples
    --------
    >>> replacement = network.replace(graph)  # compiles beside the frames
    """

    def __init__(
        self, name: str, make: Callable[[], Any], program_of: Callable[[Any], PendingProgram | None]
    ) -> None:
        self.name = name
        self.state: State = "compiling"
        self.error: CmlError | None = None
        #: the number of calls of ``advance``
        self.advanced = 0
        #: the compiled network
        self.compiled: Any = None
        self._make, self._program_of = make, program_of
        self._made, self._changing = Event(), Lock()
        self._thread = Thread(target=self._compile, name="cml-replace", daemon=True)
        _yielding.begin()
        self._thread.start()

    def _compile(self) -> None:
        try:
            _lower_priority()
            with frame_gate.background():
                network = self._make()
            with self._changing:
                if self.state == "compiling":
                    self.compiled, self.state = network, "preparing"
        except Exception as error:
            self.fail(error)
        finally:
            del self._make  # it refers to the old network
            _yielding.end()
            self._made.set()

    def fail(self, error: Exception) -> None:
        """Sets the state to ``"failed"`` with this error, unless it was superseded."""
        message = str(error) or type(error).__name__
        with self._changing:
            if self.state != "superseded":
                self.error = error if isinstance(error, CmlError) else InputError(message)
                self.compiled, self.state = None, "failed"

    def supersede(self) -> None:
        """Discards this replacement in favour of a later one, unless it is done or has failed."""
        with self._changing:
            if self.state in ("compiling", "preparing"):
                self.compiled, self.state = None, "superseded"

    @property
    def ready(self) -> bool:
        """True if the session can switch to the new network now."""
        if self.state != "preparing":
            return False
        program = self._program_of(self.compiled)
        return program is None or program.prepared

    def advance(self, budget_ms: float) -> None:
        """Prepares the compiled network for about ``budget_ms``: uploads weights, builds pipelines.

        Never waits and never raises: an error sets :attr:`error`.
        """
        frame_gate.begin_frame()
        self.advanced += 1
        program = self._program_of(self.compiled) if self.state == "preparing" else None
        if program is not None and not program.prepared:
            try:
                program.prepare(budget_ms)
            except Exception as error:
                self.fail(error)

    def finish(self) -> None:
        """Blocks until the replacement is ready or has failed; for tools.

        It does not raise the replacement's error.
        """
        frame_gate.reset()
        self._made.wait()
        program = self._program_of(self.compiled) if self.state == "preparing" else None
        if program is not None:
            try:
                program.load()
            except Exception as error:
                self.fail(error)


def _lower_priority() -> None:
    """Gives this thread the lowest scheduling priority on Linux.

    A software driver renders on the same cores; Linux then runs the driver's threads first.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


class _Yielding:
    """Shortens the interpreter's switch interval while at least one thread compiles a network."""

    def __init__(self) -> None:
        self.lock, self.threads, self.usual_s = Lock(), 0, 0.0

    def begin(self) -> None:
        """Counts a thread that starts to compile; the first one shortens the interval."""
        with self.lock:
            if not self.threads:
                self.usual_s = sys.getswitchinterval()
                sys.setswitchinterval(min(self.usual_s, _YIELD_S))
            self.threads += 1

    def end(self) -> None:
        """Counts a thread that has finished; the last one restores the interval."""
        with self.lock:
            self.threads -= 1
            if not self.threads:
                sys.setswitchinterval(self.usual_s)


_yielding = _Yielding()


def check_interface(old: Graph, new: Graph) -> None:
    """Raises :class:`InputError` if the inputs or outputs of two networks differ.

    Their names, shapes and types must be equal.
    """
    lacking = [name for name in old.sliders if name not in new.inputs]
    if lacking:
        places = ", ".join(f"'{name}': '{old.sliders[name].place}'" for name in lacking)
        raise InputError(
            f"'{new.name}' cannot take the place of '{old.name}': it has no slider "
            f"{', '.join(map(repr, lacking))}. Load it with cml.load(…, sliders={{{places}}})"
        )
    for role, old_names, new_names in (
        ("input", old.inputs, new.inputs),
        ("output", old.outputs, new.outputs),
    ):
        if set(old_names) != set(new_names):
            raise InputError(
                f"'{new.name}' cannot take the place of '{old.name}': wanted the {role}s "
                f"{', '.join(old_names)}, got {', '.join(new_names)}. Make a new session for it"
            )
        for name in old_names:
            if old.facts[name] != new.facts[name]:
                raise InputError(
                    f"'{new.name}' cannot take the place of '{old.name}': {role} '{name}' is "
                    f"{new.facts[name]}, wanted {old.facts[name]}. Make a new session for it"
                )
