"""The pipelines and launches of the kernels between textures and tensors.

``load.py``, ``pack.py`` and ``enter.py`` use them, each for the kernel of its name.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock

import wgpu

from cml_engine.compiler.plan import StepCost
from cml_engine.gpu.device import Device
from cml_engine.gpu.memory.allocator import BufferRange
from cml_engine.gpu.native import Dispatch, device_errors, dispatch_of
from cml_engine.gpu.program.preparation import BUILDER
from cml_engine.gpu.shaders.hlsl import resolve

#: pixels per workgroup
GROUP = 64
#: bytes of a kernel's parameters: five rows of four integers, two rows of four floats
PARAMS_BYTES = 112
#: launches that one submit may hold
_SLOTS = 256
#: bind groups cached per texture or buffer
_KEPT = 16


@dataclass(frozen=True, slots=True)
class Params:
    """The parameters of a texture kernel.

    They are packed together with its slice into the seven rows of ``shaders_hlsl/textures/*.hlsl``.
    """

    pixels: int
    sizes: Sequence[int]
    strides: Sequence[int] = (0, 0, 0, 0)
    picked: Sequence[int] = (0, 0, 0, 0)
    scale: Sequence[float] = (1.0, 1.0, 1.0, 1.0)
    shift: Sequence[float] = (0.0, 0.0, 0.0, 0.0)
    how: tuple[int, int] = (0, 0)

    @property
    def groups(self) -> int:
        """The total number of workgroups."""
        return -(-self.pixels // GROUP)

    def pack(self, first: int, end: int, width: int) -> bytes:
        rows = (first, end, width, self.pixels, *self.sizes, *self.strides, *self.picked)
        return struct.pack("=16I8f4I", *rows, *self.scale, *self.shift, *self.how, 0, 0)


class TextureKernels:
    """The pipelines, parameters and bind groups of one device's texture kernels.

    Each is created at its first use.
    """

    def __init__(self, gpu: Device) -> None:
        self._device, self._width = gpu.device, gpu.limits.max_groups_per_dimension
        self._stride = -(-PARAMS_BYTES // gpu.limits.uniform_offset_alignment)
        self._stride *= gpu.limits.uniform_offset_alignment
        usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
        self._params = gpu.memory.allocate(
            self._stride * _SLOTS, usage, owner="textures", category="uniform"
        )
        self._params.free_with_owner(self)
        self._next = 0
        self._lock = Lock()
        self._bind_groups: weakref.WeakKeyDictionary[
            object, dict[tuple[Hashable, ...], wgpu.GPUBindGroup]
        ] = weakref.WeakKeyDictionary()
        self._building: Future[None] | None = None
        self._layouts: dict[str, wgpu.GPUBindGroupLayout] = {}
        self._pipelines: dict[str, wgpu.GPUComputePipeline] = {}

    # --- pipelines

    @property
    def ready(self) -> bool:
        """True if all pipelines are built.

        An error of a background build is raised here once.
        """
        building = self._building
        if len(self._pipelines) == len(_KERNELS) or building is None or not building.done():
            return len(self._pipelines) == len(_KERNELS)
        self._building = None
        building.result()
        return True

    def build_ahead(self, gpu: Device) -> None:
        """Starts to build the pipelines on the background builder thread."""
        with self._lock:
            if self._building is None and len(self._pipelines) < len(_KERNELS):
                self._building = BUILDER.submit("textures", lambda: self.build(gpu))

    @device_errors()
    def build(self, gpu: Device) -> None:
        """Builds the missing pipelines now; blocks."""
        for name, bindings in _KERNELS.items():
            if name in self._pipelines:
                continue
            path = f"textures/{name}.hlsl"
            module = gpu.shader(resolve(path), "compute", "main", trusted=True)
            layout = self._device.create_bind_group_layout(
                entries=[
                    {"binding": i, "visibility": wgpu.ShaderStage.COMPUTE, **binding}
                    for i, binding in enumerate(bindings)
                ]
            )
            self._layouts[name] = layout
            self._pipelines[name] = self._device.create_compute_pipeline(
                label=path,
                layout=self._device.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={"module": module, "entry_point": "main"},
            )

    # --- launches

    def bind_group(
        self,
        name: str,
        cached_for: object,
        key: tuple[Hashable, ...],
        resources: Callable[[], Sequence[BufferRange | wgpu.GPUTextureView]],
    ) -> wgpu.GPUBindGroup:
        """Returns a bind group of the kernel, cached as long as ``cached_for`` exists.

        Its entries are the parameters, then the ``resources()``.
        """
        with self._lock:
            groups = self._bind_groups.setdefault(cached_for, {})
            group = groups.pop((name, *key), None)
            if group is None:
                bound = (self._params.binding(0, PARAMS_BYTES), *resources())
                entries = [{"binding": i, "resource": r} for i, r in enumerate(bound)]
                group = self._device.create_bind_group(layout=self._layouts[name], entries=entries)
            groups[name, *key] = group  # the one used last is at the end
            if len(groups) > _KEPT:
                del groups[next(iter(groups))]
            return group

    def dispatch(
        self,
        name: str,
        bind_group: wgpu.GPUBindGroup,
        params: Params,
        part: tuple[int, int],
        offsets: Sequence[int] = (),
    ) -> Dispatch:
        """Returns a dispatch of kernel ``name``; ``part`` are its workgroups ``[first, end)``.

        ``offsets`` are the dynamic offsets of the kernel's other bindings. At most
        :data:`_SLOTS` dispatches may be recorded between two submits.
        """
        first, end = part
        with self._lock:
            slot = self._stride * self._next
            self._next = (self._next + 1) % _SLOTS
        self._params.write(params.pack(first, end, self._width), slot)
        count = end - first
        columns, rows = min(count, self._width), -(-count // self._width)
        return dispatch_of(self._pipelines[name], bind_group, (slot, *offsets), columns, rows)


_Entry = dict[str, dict[str, object]]
_PARAMS: _Entry = {
    "buffer": {"type": "uniform", "min_binding_size": PARAMS_BYTES, "has_dynamic_offset": True}
}
_WORDS: _Entry = {"buffer": {"type": "storage"}}
_MOVING: _Entry = {"buffer": {"type": "storage", "has_dynamic_offset": True}}
#: a texture of any format: nothing is filtered
_TEXTURE: _Entry = {"texture": {"sample_type": "unfilterable-float", "view_dimension": "2d"}}
#: the kernels' bindings by name
_KERNELS = {
    "load": (_PARAMS, _TEXTURE, _WORDS),
    "pack": (_PARAMS, _MOVING, _WORDS),
    "enter": (_PARAMS, _WORDS, _WORDS),
}

_kernels: weakref.WeakKeyDictionary[Device, TextureKernels] = weakref.WeakKeyDictionary()
_kernels_lock = Lock()


def kernels_of(gpu: Device) -> TextureKernels:
    """Returns the texture kernels of the device, created at the first call."""
    with _kernels_lock:
        kernels = _kernels.get(gpu)
        if kernels is None:
            kernels = _kernels[gpu] = TextureKernels(gpu)
        return kernels


def step_cost(
    name: str, title: str, params: Params, words_per_pixel: float, at_once: bool = False
) -> StepCost:
    """Returns the cost of a dispatch for the scheduler; ``words_per_pixel`` are read and written.

    With ``at_once`` the dispatch counts as one workgroup, so that it is never sliced.
    """
    groups = 1 if at_once else params.groups
    pixels = params.groups * GROUP / groups
    flops, nbytes = 16.0 * pixels, 4 * words_per_pixel * pixels
    key = f"{name} {name}-texture {flops:.4g}F {nbytes:.4g}B"
    return StepCost(key, name, title, groups, flops, nbytes)
