"""A cache of a device's compute pipelines by kernel variant."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from weakref import WeakValueDictionary

import wgpu

from cml_engine.gpu.shaders.steps import Variant

#: pipelines kept for later networks; one takes 2 to 5 MB on llvmpipe
_MOST_KEPT = 128


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Pipeline:
    """A kernel variant built for a device: its compute pipeline and bind group layout."""

    label: str
    pipeline: wgpu.GPUComputePipeline
    layout: wgpu.GPUBindGroupLayout


class PipelineCache:
    """A cache that builds each pipeline once, even if several threads request it.

    It keeps the ``most`` pipelines requested last. Any other lasts as long as a program
    references it.
    """

    def __init__(self, most: int = _MOST_KEPT) -> None:
        self._most = most
        self._lock = Lock()
        self._last: OrderedDict[Variant, Pipeline] = OrderedDict()
        self._alive: WeakValueDictionary[Variant, Pipeline] = WeakValueDictionary()
        self._building: dict[Variant, Future[Pipeline]] = {}
        #: pipelines built so far
        self.built = 0

    def __len__(self) -> int:
        return len(self._alive)

    def get(self, key: Variant, build: Callable[[Variant], Pipeline]) -> Pipeline:
        """Returns the variant's pipeline; calls ``build(key)`` if it does not exist.

        If another thread is building it, the caller waits for that build and its error. After a
        failure the next caller builds it again.
        """
        mine: Future[Pipeline] = Future()
        with self._lock:
            found = self._alive.get(key)
            if found is not None:
                self._keep(key, found)
                return found
            building = self._building.setdefault(key, mine)
        if building is mine:
            try:
                made = build(key)
            except BaseException as error:
                with self._lock:
                    del self._building[key]
                mine.set_exception(error)
            else:
                with self._lock:
                    del self._building[key]
                    self._alive[key] = made
                    self._keep(key, made)
                    self.built += 1
                mine.set_result(made)
        return building.result()

    def _keep(self, key: Variant, pipeline: Pipeline) -> None:
        self._last[key] = pipeline
        self._last.move_to_end(key)
        if len(self._last) > self._most:
            self._last.popitem(last=False)
