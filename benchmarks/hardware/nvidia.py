"""NVIDIA's compiler without a card: Slang's CUDA through nvrtc and ptxas, read by nvdisasm.

A Vulkan driver compiles SPIR-V instead, with descriptors where CUDA has pointers, and keeps
uniform blocks in constant memory. So registers and multiply-adds are close, addresses are not.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import re
import shutil
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import cml_engine as cml
from benchmarks.hardware.listing import nvidia_listing
from benchmarks.hardware.model import Kernel
from cml_engine.gpu.shaders import compilers
from cml_engine.gpu.shaders.hlsl import ShaderKey, resolved_source

#: registers of a multiprocessor's SIMD, which are given to warps in units of 256; warps of a SIMD
_REGISTERS, _UNIT, _LANES = 16384, 256, 32
_WARPS = {"sm_75": 8, "sm_89": 12, "sm_90": 16}
#: the time of an instruction on two halves, relative to one on a float: of sm_75 by the table
#: "Throughput of Native Arithmetic Instructions" of NVIDIA's CUDA C++ Programming Guide (128 halves
#: and 64 floats in a cycle), of others by peaks without tensor cores, in TFLOP/s: of an RTX 4090
#: 82.6 and 82.6, of an H100 SXM 120 and 60 (NVIDIA, "Hopper Architecture In-Depth")
_HALF_TIME = {"sm_75": 1, "sm_89": 2, "sm_90": 1}
#: includes cuda_fp16.h in Slang's CUDA, for the types half2 and half4
_HALVES = "-DSLANG_CUDA_ENABLE_HALF=1"
_REGISTERS_TEXT = re.compile(r"Used (\d+) registers")
_SPILLS_TEXT = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_SHARED_TEXT = re.compile(r"(\d+) bytes smem")


class NvidiaError(cml.CmlError):
    """Raised if a tool is missing or refuses a kernel."""


@cache
def tool(name: str) -> str | None:
    """Returns the path of a tool of the CUDA toolkit: on PATH, or in NVIDIA's Python packages."""
    found = (shutil.which(name), *(shutil.which(name, path=str(f)) for f in _folders("bin")))
    return next(filter(None, found), None)


def _folders(name: str) -> list[Path]:
    """Returns the folders of this name in NVIDIA's Python packages, and in the CUDA toolkit."""
    packages = Path(sysconfig.get_path("purelib"), "nvidia").glob(f"*/{name}")
    return [*packages, Path("/usr/local/cuda", name)]


@cache
def _nvrtc() -> ctypes.CDLL:
    """Returns NVIDIA's compiler as a library; raises :class:`NvidiaError` if it is missing."""
    names = [ctypes.util.find_library("nvrtc")]
    names += [str(file) for f in (*_folders("lib"), *_folders("lib64")) for file in _libraries(f)]
    for name in filter(None, names):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise NvidiaError(
        "NVIDIA's compiler nvrtc is needed: the CUDA toolkit, or the package nvidia-cuda-nvrtc"
    )


def _libraries(folder: Path) -> list[Path]:
    return [f for f in sorted(folder.glob("libnvrtc.so*")) if "builtins" not in f.name]


def require_tools() -> str:
    """Returns the path of ``nvdisasm``.

    Raises :class:`NvidiaError` if it or the compiler is missing.
    """
    _nvrtc()
    found = tool("nvdisasm")
    if found is None:
        raise NvidiaError(
            "nvdisasm is needed: the CUDA toolkit, or the package nvidia-cuda-nvdisasm"
        )
    return found


def is_installed() -> bool:
    """Returns True if NVIDIA's compiler and disassembler are there."""
    try:
        return bool(require_tools())
    except NvidiaError:
        return False


def compile_kernel(key: ShaderKey, family: str) -> Kernel:
    """Returns the kernel as NVIDIA's compiler makes it for a family such as ``sm_89``.

    Raises :class:`NvidiaError` if Slang has no CUDA for it, or a tool is missing.
    """
    disassembler = require_tools()
    with tempfile.NamedTemporaryFile(prefix="cml-nvidia-", suffix=".cubin") as file:
        binary, report = assemble(key, family)
        file.write(binary)
        file.flush()
        code = subprocess.run(
            [disassembler, "-c", file.name], capture_output=True, text=True, check=True
        ).stdout
    return _kernel(report, code, family)


def assemble(key: ShaderKey, family: str) -> tuple[bytes, str]:
    """Returns the kernel's machine code, and the report of ptxas.

    Raises :class:`NvidiaError` if Slang has no CUDA for it, or nvrtc is missing or refuses it.
    """
    try:
        source = compilers.compile(compilers.Request(resolved_source(key), key.path, "cuda"))
    except compilers.CompilerError as error:
        raise NvidiaError(f"Slang has no CUDA for it: {_first_error(str(error))}") from None
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source.rstrip(b"\0"), b"kernel.cu", 0, None, None
    )
    options = [f"-arch={family}", "-w", "--ptxas-options=-v", _HALVES]
    options += [f"-I{folder}" for folder in _folders("include")]
    failed = nvrtc.nvrtcCompileProgram(
        program, len(options), (ctypes.c_char_p * len(options))(*map(str.encode, options))
    )
    report = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode()
    binary = b""
    if not failed:
        binary = _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise NvidiaError(f"nvrtc refuses Slang's CUDA: {_first_error(report)}")
    return binary, report


def _text(measure: Any, copy: Any, program: ctypes.c_void_p) -> bytes:
    """Returns what a program of nvrtc has, by its functions for the size and the content."""
    size = ctypes.c_size_t()
    measure(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    copy(program, buffer)
    return buffer.raw


def _kernel(report: str, code: str, family: str) -> Kernel:
    registers = _number(_REGISTERS_TEXT, report)
    warp = -(-max(registers, 1) * _LANES // _UNIT) * _UNIT
    spills = _SPILLS_TEXT.search(report)
    listing = nvidia_listing(code, _HALF_TIME[family])
    return Kernel(
        registers=registers,
        spills=sum(map(int, spills.groups())) // 4 if spills else 0,
        waves=min(_REGISTERS // warp, _WARPS[family]),
        code_bytes=16 * sum(map(len, listing.blocks)),
        shared_bytes=_number(_SHARED_TEXT, report),
        wave=_LANES,
        listing=listing,
    )


def _number(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.search(text)
    return int(match[1]) if match else 0


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if "error" in line]
    return (lines or ["no message"])[0][:200]
