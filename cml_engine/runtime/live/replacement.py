"""Another network in the place of a session's, made while the old one serves."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any, Literal, Protocol

from cml_engine.errors import CmlError, InputError
from cml_engine.gpu.turns import turns
from cml_engine.ir.graph import Graph

State = Literal["compiling", "preparing", "done", "failed", "superseded"]


#: seconds that another thread waits for the interpreter while a network is compiled, at most: a
#: frame gives it up at every call of the driver, and would wait Python's own 5 ms each time
_YIELD_S = 2e-5


class Coming(Protocol):
    """A network that is made and not yet in its place."""

    @property
    def prepared(self) -> bool: ...
    def prepare(self, budget_ms: float) -> None: ...
    def load(self) -> None: ...


class Replacement:
    """On its way into a session. :attr:`state` may be read at any time; where it is ``"failed"``,
    :attr:`error` says why and the session goes on with what it had."""

    def __init__(
        self, name: str, make: Callable[[], Any], program_of: Callable[[Any], Coming | None]
    ) -> None:
        self.name = name
        self.state: State = "compiling"
        self.error: CmlError | None = None
        #: how often somebody has prepared it for a while
        self.advanced = 0
        #: what the session takes, once it is compiled
        self.compiled: Any = None
        self._make, self._program_of = make, program_of
        self._made, self._changing = Event(), Lock()
        self._thread = Thread(target=self._compile, name="cml-replace", daemon=True)
        _yielding.begin()
        self._thread.start()

    def _compile(self) -> None:
        try:
            _be_least()
            with turns.between_frames():
                made = self._make()
            with self._changing:
                if self.state == "compiling":
                    self.compiled, self.state = made, "preparing"
        except Exception as error:
            self.fail(error)
        finally:
            del self._make  # and what it knows of the old one
            _yielding.end()
            self._made.set()

    def fail(self, error: Exception) -> None:
        """It will not come; the old one stays."""
        said = str(error) or type(error).__name__
        with self._changing:
            if self.state != "superseded":
                self.error = error if isinstance(error, CmlError) else InputError(said)
                self.compiled, self.state = None, "failed"

    def supersede(self) -> None:
        """A later one comes in its place, however far it is."""
        with self._changing:
            if self.state in ("compiling", "preparing"):
                self.compiled, self.state = None, "superseded"

    @property
    def ready(self) -> bool:
        """Whether the session may take it now."""
        if self.state != "preparing":
            return False
        program = self._program_of(self.compiled)
        return program is None or program.prepared

    def advance(self, budget_ms: float) -> None:
        """Upload and build for about that long, in a frame; never waits and never raises."""
        turns.begin_frame()
        self.advanced += 1
        program = self._program_of(self.compiled) if self.state == "preparing" else None
        if program is not None and not program.prepared:
            try:
                program.prepare(budget_ms)
            except Exception as error:
                self.fail(error)

    def finish(self) -> None:
        """Wait until it can be taken, or has failed: for tools."""
        turns.forget()
        self._made.wait()
        program = self._program_of(self.compiled) if self.state == "preparing" else None
        if program is not None:
            try:
                program.load()
            except Exception as error:
                self.fail(error)


def _be_least() -> None:
    """This thread takes what all others leave of the processors: a software driver draws on the
    same ones, and its threads are woken on one that does nothing more urgent. Linux knows that."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


class _Yielding:
    """How many threads compile, and the interpreter's own interval."""

    def __init__(self) -> None:
        self.lock, self.threads, self.usual_s = Lock(), 0, 0.0

    def begin(self) -> None:
        """A thread is about to compile."""
        with self.lock:
            if not self.threads:
                self.usual_s = sys.getswitchinterval()
                sys.setswitchinterval(min(self.usual_s, _YIELD_S))
            self.threads += 1

    def end(self) -> None:
        """It has."""
        with self.lock:
            self.threads -= 1
            if not self.threads:
                sys.setswitchinterval(self.usual_s)


_yielding = _Yielding()


def check_interface(old: Graph, new: Graph) -> None:
    """:class:`InputError` where a host that has given the old one its inputs, and taken its
    outputs, could not go on with the new one."""
    for what, names, others in (
        ("input", old.inputs, new.inputs),
        ("output", old.outputs, new.outputs),
    ):
        if set(names) != set(others):
            raise InputError(
                f"'{new.name}' cannot take the place of '{old.name}': wanted the {what}s "
                f"{', '.join(names)}, got {', '.join(others)}. Make a session of it"
            )
        for name in names:
            if old.facts[name] != new.facts[name]:
                raise InputError(
                    f"'{new.name}' cannot take the place of '{old.name}': {what} '{name}' is "
                    f"{new.facts[name]}, wanted {old.facts[name]}. Make a session of it"
                )
