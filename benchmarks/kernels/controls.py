"""Control kernels from ``control.hlsl`` that measure peak rates: products, and a copy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import wgpu

from benchmarks.kernels.roofline import Peaks
from cml_engine.gpu.gpu import Gpu
from cml_engine.gpu.shaders.hlsl import parse_params, shader_key
from cml_engine.gpu.timing.frame_timer import PassTimer

_GROUP = 64
#: products per thread and loop iteration, loop iterations, and workgroups
_PRODUCTS, _TURNS, _FMA_GROUPS = 128, 128, 256
_COPY_VECTORS = 1 << 20
_VECTOR_BYTES = 16


class Control:
    """A GPU dispatch of known work: multiply-adds on registers if ``fma``, otherwise a copy.

    ``flops`` and ``nbytes`` (read and written) are the work of one dispatch; one of them is 0.
    """

    def __init__(self, gpu: Gpu, fma: bool, groups: int = 0) -> None:
        self.groups = groups or (_FMA_GROUPS if fma else _COPY_VECTORS // _GROUP)
        threads = self.groups * _GROUP
        self.flops = 2.0 * _PRODUCTS * _TURNS * threads if fma else 0.0
        self.nbytes = 0.0 if fma else 2.0 * _VECTOR_BYTES * threads
        vectors: dict[str, int | str] = {"T0_TYPE": "float4"}
        defines = {"GROUP": _GROUP, "FMA": int(fma), "T1_TYPE": "float" if fma else "float4"}
        path = Path(__file__).with_name("control.hlsl")
        key = shader_key(path, "rounds:u", 2, vectors | defines, trusted=True)
        params = parse_params("rounds:u").pack({"rounds": _TURNS})
        slots = np.array([0, self.groups, self.groups, 0], np.uint32).tobytes()
        self._pipeline = gpu.pipeline(key, lambda: (slots, params))
        uniform, storage = wgpu.BufferUsage.UNIFORM, wgpu.BufferUsage.STORAGE
        data = np.full(4 * _COPY_VECTORS, 0.5, np.float32).tobytes()
        contents = [(slots, uniform), (params, uniform)]
        contents += [(data, storage)] * 2
        buffers: list[wgpu.GPUBuffer] = [
            gpu.device.create_buffer_with_data(data=d, usage=u) for d, u in contents
        ]
        entries: list[dict[str, object]] = [
            {"binding": i, "resource": {"buffer": b, "offset": 0, "size": b.size}}
            for i, b in enumerate(buffers)
        ]
        layout = self._pipeline.layout
        self._bind_group = gpu.device.create_bind_group(layout=layout, entries=entries)

    def encode(self, compute: wgpu.GPUComputePassEncoder) -> None:
        """Encodes the dispatch into the compute pass."""
        compute.set_pipeline(self._pipeline.pipeline)
        compute.set_bind_group(0, self._bind_group, [0])
        compute.dispatch_workgroups(self.groups)


class PeakMeter:
    """Measures the device's peak rates on demand, in the same round as the kernels."""

    def __init__(self, gpu: Gpu) -> None:
        self._timer = PassTimer(gpu)
        self._controls = [Control(gpu, True), Control(gpu, False), Control(gpu, False, groups=1)]

    def measure(self) -> Peaks:
        """Runs the three controls once and returns the peak rates and the launch time."""
        fma, copy, launch = self._controls
        times = self._timer.time([0, 1, 2], lambda compute, i: self._controls[i].encode(compute))
        seconds = [1e-3 * max(ms, 1e-6) for ms in times]
        return Peaks(fma.flops / seconds[0], copy.nbytes / seconds[1], seconds[2])
