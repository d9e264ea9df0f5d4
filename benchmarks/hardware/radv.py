"""AMD's compiler in Mesa (ACO in RADV), without a card: RADV has devices of null hardware.

``RADV_FORCE_FAMILY`` makes RADV offer a device of that family on which nothing can be submitted.
Pipelines can be created, and ``VK_KHR_pipeline_executable_properties`` returns the compiler's
statistics and its code. The driver's library is opened directly, because the Vulkan loader would
offer all drivers of the machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cffi import FFI

import cml_engine as cml
from benchmarks.hardware.listing import amd_listing
from benchmarks.hardware.model import Kernel

#: folders of the manifests of Vulkan drivers
_MANIFESTS = ("/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d")
#: Vulkan's structures as far as they are used; the members follow vulkan_core.h
_TYPES = """
typedef struct { uint32_t type; void *next; const char *app; uint32_t app_version;
    const char *engine; uint32_t engine_version, api; } Application;
typedef struct { uint32_t type; void *next; uint32_t flags; Application *app;
    uint32_t layers; void *layer_names; uint32_t extensions; void *names; } InstanceInfo;
typedef struct { uint32_t type; void *next; uint32_t flags, family, count; const float *priorities;
    } QueueInfo;
typedef struct { uint32_t type; void *next; uint32_t values[64]; } Features;
typedef struct { uint32_t type; void *next; uint32_t flags, queues; QueueInfo *queue;
    uint32_t layers; void *layer_names; uint32_t extensions; const char **names; void *features;
    } DeviceInfo;
typedef struct { uint32_t type; void *next; uint32_t flags; size_t size; const void *code;
    } ModuleInfo;
typedef struct { uint32_t binding, type, count, stages; void *samplers; } Binding;
typedef struct { uint32_t type; void *next; uint32_t flags, count; Binding *bindings;
    } SetLayoutInfo;
typedef struct { uint32_t stages, offset, size; } Range;
typedef struct { uint32_t type; void *next; uint32_t flags, sets; uint64_t *layouts;
    uint32_t ranges; Range *range; } LayoutInfo;
typedef struct { uint32_t id, offset; size_t size; } MapEntry;
typedef struct { uint32_t count; MapEntry *entries; size_t size; const void *data; } Constants;
typedef struct { uint32_t type; void *next; uint32_t flags, stage; uint64_t module;
    const char *entry; Constants *constants; } StageInfo;
typedef struct { uint32_t type; void *next; uint32_t flags; StageInfo stage; uint64_t layout,
    base; int32_t index; } PipelineInfo;
typedef struct { uint32_t type; void *next; uint64_t pipeline; } PipelineRef;
typedef struct { uint32_t type; void *next; uint64_t pipeline; uint32_t index; } ExecutableRef;
typedef struct { uint32_t type; void *next; uint32_t stages; char name[256], about[256];
    uint32_t lanes; } Executable;
typedef struct { uint32_t type; void *next; char name[256], about[256]; uint32_t format;
    uint64_t value; } Statistic;
typedef struct { uint32_t type; void *next; char name[256], about[256]; uint32_t is_text;
    size_t size; void *data; } Representation;
typedef void *(*FindFunction)(void *, const char *);
"""
#: numbers of VkStructureType
_FEATURES_2, _VULKAN_11, _VULKAN_12, _VULKAN_13 = 1000059000, 49, 51, 53
_EXECUTABLE = 1000269000
#: positions in VkPhysicalDeviceFeatures, and in those of Vulkan 1.1 to 1.3
_ROBUST, _INT64, _INT16 = 0, 40, 41
_USED_11, _USED_12, _USED_13 = (0, 1), (2, 3, 7, 8, 31, 34, 41, 42), (7, 8, 11, 13)
_CAPTURE_STATISTICS, _CAPTURE_CODE = 0x40, 0x80
#: of push constants, as many as RADV has
_PUSHED_BYTES = 128
_STORAGE_BUFFER, _UNIFORM_BUFFER, _COMPUTE = 7, 6, 0x20
_API = (1 << 22) | (3 << 12)
#: SPIR-V's instructions, and a decoration
_OP_ENTRY_POINT, _OP_DECORATE, _OP_VARIABLE, _BINDING = 15, 71, 59, 33
_OP_TYPE_POINTER, _STORAGE_CLASS_UNIFORM, _BUFFER_BLOCK = 32, 2, 3


class RadvError(cml.CmlError):
    """Raised if RADV is not installed or refuses a kernel; its text says why."""


@dataclass(frozen=True, slots=True)
class Specialization:
    """The specialization constants of a pipeline: (id, offset, size) of each, and their data."""

    entries: tuple[tuple[int, int, int], ...]
    data: bytes


@cache
def library() -> Path | None:
    """Returns the path of RADV's library from its manifest, or None if RADV is not installed."""
    for folder in _MANIFESTS:
        for manifest in sorted(Path(folder).glob("radeon_icd*.json")):
            path = Path(json.loads(manifest.read_text(encoding="utf-8"))["ICD"]["library_path"])
            if path.is_file():
                return path
    return None


class Radv:
    """A simulated GPU for which RADV compiles; ``family`` is RADV's name of a card, as ``NAVI21``.

    With ``robust`` buffers are bound-checked by the hardware, as wgpu requests it.
    """

    def __init__(self, family: str, robust: bool = False) -> None:
        path = library()
        if path is None:
            raise RadvError("RADV is not installed (on Debian: mesa-vulkan-drivers)")
        self._family = family
        self._ffi = FFI()
        self._ffi.cdef(_TYPES + "void *vk_icdGetInstanceProcAddr(void *, const char *);")
        self._lib: Any = self._ffi.dlopen(str(path))
        # RADV reads the variable for each instance
        before = os.environ.get("RADV_FORCE_FAMILY")
        os.environ["RADV_FORCE_FAMILY"] = family
        try:
            self._open(robust)
        finally:
            if before is None:
                del os.environ["RADV_FORCE_FAMILY"]
            else:
                os.environ["RADV_FORCE_FAMILY"] = before

    def _open(self, robust: bool) -> None:
        new, void = self._ffi.new, self._ffi.NULL
        app = new("Application *", {"type": 0, "api": _API})
        info = new("InstanceInfo *", {"type": 1, "app": app})
        self._instance = void
        self._instance = self._created("void *", self._function("vkCreateInstance"), info)
        count, devices = new("uint32_t *", 1), new("void *[1]")
        enumerate_devices = self._function("vkEnumeratePhysicalDevices")
        result = enumerate_devices(self._instance, self._cast(count), self._cast(devices))
        if result or not count[0]:
            raise RadvError("RADV offers no device of null hardware")
        executables = new("Features *", {"type": _EXECUTABLE, "values": [1]})
        chain = self._features(_VULKAN_13, _USED_13, executables)
        chain = self._features(_VULKAN_12, _USED_12, chain)
        chain = self._features(_VULKAN_11, _USED_11, chain)
        used = (_INT64, _INT16, *[_ROBUST] * robust)
        features = self._features(_FEATURES_2, used, chain)
        priority = new("float[1]", [1.0])
        queue = new("QueueInfo *", {"type": 2, "count": 1, "priorities": priority})
        extension = new("char[]", b"VK_KHR_pipeline_executable_properties")
        names = new("const char *[1]", [extension])
        device = new(
            "DeviceInfo *",
            {"type": 3, "next": features, "queues": 1, "queue": queue, "extensions": 1,
             "names": names},
        )  # fmt: skip
        self._kept = (app, chain, executables, features, priority, queue, extension, names)
        create = self._function("vkCreateDevice")
        handle = new("void **")
        self._check(create(devices[0], self._cast(device), void, handle), "a device")
        self._device = handle[0]

    def _features(self, type: int, used: tuple[int, ...], after: Any) -> Any:
        features = self._ffi.new("Features *", {"type": type, "next": after})
        for index in used:
            features.values[index] = 1
        self._chained = [*getattr(self, "_chained", []), features]
        return features

    def _function(self, name: str) -> Callable[..., int]:
        address = self._lib.vk_icdGetInstanceProcAddr(self._instance, name.encode())
        if address == self._ffi.NULL:
            raise RadvError(f"RADV has no {name}")
        types = _SIGNATURES[name]
        function: Callable[..., int] = self._ffi.cast(f"int (*)({types})", address)
        return function

    def _cast(self, value: Any) -> Any:
        return self._ffi.cast("void *", value)

    def _created(self, type: str, create: Callable[..., int], info: Any) -> Any:
        handle = self._ffi.new(f"{type} *")
        before = (self._device,) if hasattr(self, "_device") else ()
        result = create(*before, self._cast(info), self._ffi.NULL, self._cast(handle))
        self._check(result, "an object")
        return handle[0]

    def _check(self, result: int, what: str) -> None:
        if result:
            raise RadvError(f"RADV cannot create {what} (VkResult {result})")

    def compile(self, spirv: bytes, constants: Specialization | None = None) -> Kernel:
        """Compiles a compute kernel with its specialization constants.

        Raises :class:`RadvError` if RADV refuses it.
        """
        new = self._ffi.new
        entry, bindings = interface_of(spirv)
        code = new("char[]", spirv)
        module = self._created(
            "uint64_t",
            self._function("vkCreateShaderModule"),
            new("ModuleInfo *", {"type": 16, "size": len(spirv), "code": code}),
        )
        slots = new("Binding[]", [(number, type, 1, _COMPUTE) for number, type in bindings])
        set_info = new("SetLayoutInfo *", {"type": 32, "count": len(bindings), "bindings": slots})
        set_layout = self._created(
            "uint64_t", self._function("vkCreateDescriptorSetLayout"), set_info
        )
        sets = new("uint64_t[1]", [set_layout])
        pushed = new("Range *", (_COMPUTE, 0, _PUSHED_BYTES))
        layout = self._created(
            "uint64_t",
            self._function("vkCreatePipelineLayout"),
            new(
                "LayoutInfo *",
                {"type": 30, "sets": 1, "layouts": sets, "ranges": 1, "range": pushed},
            ),
        )
        name = new("char[]", entry.encode())
        given = constants or Specialization((), b"")
        entries = new("MapEntry[]", list(given.entries))
        data = new("char[]", given.data)
        specialized = new("Constants *", (len(given.entries), entries, len(given.data), data))
        info = new(
            "PipelineInfo *",
            {
                "type": 29,
                "flags": _CAPTURE_STATISTICS | _CAPTURE_CODE,
                "stage": {
                    "type": 18,
                    "stage": _COMPUTE,
                    "module": module,
                    "entry": name,
                    "constants": specialized,
                },
                "layout": layout,
            },
        )
        pipeline = new("uint64_t *")
        create = self._function("vkCreateComputePipelines")
        void = self._ffi.NULL
        self._check(create(self._device, 0, 1, self._cast(info), void, pipeline), "a pipeline")
        try:
            return self._read(pipeline[0])
        finally:
            for destroy, handle in (
                ("vkDestroyPipeline", pipeline[0]),
                ("vkDestroyPipelineLayout", layout),
                ("vkDestroyDescriptorSetLayout", set_layout),
                ("vkDestroyShaderModule", module),
            ):
                self._function(destroy)(self._device, handle, void)

    def _read(self, pipeline: int) -> Kernel:
        ref = self._ffi.new("PipelineRef *", {"type": _EXECUTABLE + 1, "pipeline": pipeline})
        executables = self._list("vkGetPipelineExecutablePropertiesKHR", ref, "Executable", 2)
        info = {"type": _EXECUTABLE + 3, "pipeline": pipeline}
        executable = self._ffi.new("ExecutableRef *", info)
        found = self._list("vkGetPipelineExecutableStatisticsKHR", executable, "Statistic", 4)
        number = {self._text(s.name): int(s.value) for s in found}
        function = "vkGetPipelineExecutableInternalRepresentationsKHR"
        texts = self._list(function, executable, "Representation", 5, with_data=True)
        code = next((text for name, text in texts if name == "Assembly"), "")
        lanes = int(executables[0].lanes)
        is_rdna = self._family.startswith("NAVI")
        # RADV counts a wave of 64 lanes on a SIMD of 32 twice
        width = lanes // 32 if is_rdna else 1
        return Kernel(
            registers=number["VGPRs"],
            spills=number["Spilled VGPRs"] + number["Spilled SGPRs"],
            waves=number["Subgroups per SIMD"] // width,
            code_bytes=number["Code size"],
            shared_bytes=number["LDS size"],
            wave=lanes,
            listing=amd_listing(code, is_rdna),
        )

    def _list(self, name: str, ref: Any, type: str, number: int, with_data: bool = False) -> Any:
        """Returns Vulkan's answers; with ``with_data`` as pairs of a name and a text."""
        function, count = self._function(name), self._ffi.new("uint32_t *")
        void = self._ffi.NULL
        function(self._device, self._cast(ref), count, void)
        items = self._ffi.new(f"{type}[]", [{"type": _EXECUTABLE + number}] * count[0])
        function(self._device, self._cast(ref), count, self._cast(items))
        if not with_data:
            return items
        buffers = [self._ffi.new("char[]", int(item.size) + 1) for item in items]
        for item, buffer in zip(items, buffers, strict=True):
            item.data = buffer
        function(self._device, self._cast(ref), count, self._cast(items))
        return [
            (self._text(item.name), self._text(buffer))
            for item, buffer in zip(items, buffers, strict=True)
        ]

    def _text(self, chars: Any) -> str:
        text = self._ffi.string(chars)
        assert isinstance(text, bytes)
        return text.decode(errors="replace")


#: the parameters of Vulkan's functions
_SIGNATURES = {
    "vkCreateInstance": "void *, void *, void *",
    "vkEnumeratePhysicalDevices": "void *, void *, void *",
    "vkCreateDevice": "void *, void *, void *, void **",
    "vkCreateShaderModule": "void *, void *, void *, void *",
    "vkCreateDescriptorSetLayout": "void *, void *, void *, void *",
    "vkCreatePipelineLayout": "void *, void *, void *, void *",
    "vkCreateComputePipelines": "void *, uint64_t, uint32_t, void *, void *, uint64_t *",
    "vkGetPipelineExecutablePropertiesKHR": "void *, void *, uint32_t *, void *",
    "vkGetPipelineExecutableStatisticsKHR": "void *, void *, uint32_t *, void *",
    "vkGetPipelineExecutableInternalRepresentationsKHR": "void *, void *, uint32_t *, void *",
    "vkDestroyPipeline": "void *, uint64_t, void *",
    "vkDestroyPipelineLayout": "void *, uint64_t, void *",
    "vkDestroyDescriptorSetLayout": "void *, uint64_t, void *",
    "vkDestroyShaderModule": "void *, uint64_t, void *",
}


def interface_of(spirv: bytes) -> tuple[str, list[tuple[int, int]]]:
    """Returns the entry point's name, and the bindings with their descriptor types."""
    words = memoryview(spirv).cast("I")
    entry, numbers, uniform = "main", dict[int, int](), dict[int, bool]()
    buffer_blocks, pointees, types = set[int](), dict[int, int](), dict[int, int]()
    for opcode, body in _instructions(words):
        if opcode == _OP_ENTRY_POINT:
            entry = bytes(body[2:]).split(b"\0")[0].decode()
        elif opcode == _OP_DECORATE and body[1] == _BINDING:
            numbers[body[0]] = body[2]
        elif opcode == _OP_DECORATE and body[1] == _BUFFER_BLOCK:
            buffer_blocks.add(body[0])
        elif opcode == _OP_TYPE_POINTER:
            pointees[body[0]] = body[2]
        elif opcode == _OP_VARIABLE:
            types[body[1]] = body[0]
            uniform[body[1]] = body[2] == _STORAGE_CLASS_UNIFORM
    bindings = []
    for variable, number in numbers.items():
        is_uniform = uniform[variable] and pointees[types[variable]] not in buffer_blocks
        bindings.append((number, _UNIFORM_BUFFER if is_uniform else _STORAGE_BUFFER))
    return entry, sorted(bindings)


def _instructions(words: memoryview[int]) -> Iterator[tuple[int, memoryview[int]]]:
    at = 5
    while at < len(words):
        length = max(words[at] >> 16, 1)
        yield words[at] & 0xFFFF, words[at + 1 : at + length]
        at += length
