"""Watches the files that a session was built from and replaces its network after a change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR

from cml_engine.compiler.plugins import load_file, loaded_files, restore
from cml_engine.errors import CmlError
from cml_engine.errors.arguments import (
    SECONDS,
    check_callable,
    check_instance,
    check_path,
    check_paths,
)
from cml_engine.formats.loading import load
from cml_engine.io.frame_gate import frame_gate
from cml_engine.ir.graph import Graph
from cml_engine.runtime.live.replacement import Replacement
from cml_engine.runtime.session import Session

__all__ = ["Reloader", "Replacement"]

#: a file's modification time in ns and its size in bytes
_Stamps = dict[Path, tuple[int, int]]
#: the share of a frame, in ms, for uploading a network that no job waits for
_IDLE_MS = 0.5
#: the number of files that are checked per frame
_FILES_A_FRAME = 8


class Reloader:
    """Replaces a session's network when its model's files, operator files or kernels change.

    Call :meth:`poll` once per frame. If a model cannot be loaded or a kernel does not compile,
    the session keeps its network with all its sliders, the operators of ``ops`` are registered as
    they were, :attr:`said` holds the message, and the next change is tried again. The new network
    is prepared by a scheduler that has jobs of the session, otherwise by :meth:`poll`.

    Parameters
    ----------
    session : the session whose network is replaced.
    model : the folder or file that the network was loaded from.
    ops : operator files (``--ops``); the HLSL files beside them are watched too.
    files : further files that the network depends on, such as the HLSL of operators in a package.
    make : loads the model. By default :func:`cml_engine.load` does, with the session's sliders and
        the shapes that were given.
    every_s : the shortest time between two checks of the files, in seconds. A change is loaded once
        two checks find the same files, so that a file is not read while it is being written.

    Examples
    --------
    >>> reloader = Reloader(network, "net.nnef")
    >>> replacement = reloader.poll()  # in every frame
    """

    def __init__(
        self,
        session: Session,
        model: str | Path,
        ops: Sequence[str | Path] = (),
        *,
        files: Iterable[str | Path] = (),
        make: Callable[[], Graph] | None = None,
        every_s: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.session, self.said = check_instance(Session, session, "session"), ""
        self._model, self._ops = check_path(model, "model"), check_paths(ops, "ops")
        self._files = check_paths(files, "files")
        #: the number of replacements that succeeded
        self.taken = 0
        self._make = self._load if make is None else check_callable(make, "make")
        #: the registrations of ``ops`` that the session's network was compiled with
        self._registrations = loaded_files(self._ops)
        self._every_s = SECONDS.check(every_s, "every_s")
        self._clock = check_callable(clock, "clock")
        self._looked_at = clock()
        self._known = self._seen = _stamps(self._watched_files())
        #: the files that are still to be checked, and the stamps of the others
        self._left: list[Path] = []
        self._found: _Stamps = {}
        self._replacement: Replacement | None = None
        self._advanced = 0
        with suppress(CmlError):  # warms up: the first load takes ten times as long as later ones
            self._make()

    def poll(self) -> Replacement | None:
        """Checks some of the files, if it is time, and begins a replacement after a change.

        Returns the replacement in the frame in which it begins, else None. Also advances an earlier
        replacement and updates :attr:`said`.
        """
        frame_gate.begin_frame()
        self._follow()
        stamps = self._changed_stamps()
        if stamps is None:
            return None
        before, self._seen = self._seen, stamps
        if self._seen != before or self._seen == self._known:
            return None
        changed = self._seen
        self._known = changed

        def load_graph() -> Graph:
            for file in self._ops:
                load_file(file)
            return self._make()

        self.said, self._advanced = f"'{self._model.name}' has changed: loading", 0
        self._replacement = self.session.replace(load_graph)
        return self._replacement

    def _load(self) -> Graph:
        graph = self.session.source_graph
        shapes = graph.origin.shapes if graph.origin else None
        return load(self._model, shapes=shapes, sliders=graph.sliders)

    def _follow(self) -> None:
        """Updates the state of the current replacement, and prepares it if no job does."""
        replacement = self._replacement
        if replacement is None:
            return
        if replacement.state == "preparing":
            self._prepare(replacement)
        if replacement.state in ("compiling", "preparing"):
            return
        self._replacement = None
        if replacement.state == "done":
            self.taken += 1
            self._registrations = loaded_files(self._ops)
        elif replacement.state == "failed":
            restore(self._registrations)
        message = f"'{self._model.name}' {replacement.state}"
        self.said = f"{message}: {replacement.error}" if replacement.error else message

    def _prepare(self, replacement: Replacement) -> None:
        if replacement.advanced == self._advanced:  # no job has advanced it since the last poll
            replacement.advance(_IDLE_MS)
        self._advanced = replacement.advanced
        if replacement.ready:
            self.session.take_replacement()

    def _changed_stamps(self) -> _Stamps | None:
        """Returns the time and size of every watched file once all are read; None before.

        Each frame reads the stamps of a few files.
        """
        if not self._left:
            now = self._clock()
            if now - self._looked_at < self._every_s:
                return None
            self._looked_at, self._left, self._found = now, self._watched_files(), {}
        self._found |= _stamps(self._left[:_FILES_A_FRAME])
        del self._left[:_FILES_A_FRAME]
        return None if self._left else self._found

    def _watched_files(self) -> list[Path]:
        files = [self._model, *self._ops, *self._files]
        with suppress(OSError):  # being written, or gone for now
            if self._model.is_dir():
                files += self._model.iterdir()
            for file in self._ops:
                files += file.parent.glob("*.hlsl*")
        return files


def _stamps(files: Iterable[Path]) -> _Stamps:
    stamps: _Stamps = {}
    for file in files:
        try:
            stat = file.stat()
        except OSError:  # being written, or gone for now
            continue
        if not S_ISDIR(stat.st_mode):
            stamps[file] = stat.st_mtime_ns, stat.st_size
    return stamps
