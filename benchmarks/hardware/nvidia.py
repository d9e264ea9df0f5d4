"""NVIDIA's compiler without a card: Slang's CUDA through nvcc and ptxas, read by nvdisasm.

A Vulkan driver compiles SPIR-V instead, with descriptors where CUDA has pointers, and keeps
uniform blocks in constant memory. So registers and multiply-adds are close, addresses are not.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path

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
#: the file of a kernel's machine code
BINARY = "kernel.cubin"
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
    folders = Path(sysconfig.get_path("purelib"), "nvidia").glob("*/bin")
    found = (shutil.which(name), *(shutil.which(name, path=str(folder)) for folder in folders))
    return next(filter(None, found), None)


#: the tools that a kernel needs, and where each comes from
_SOURCES = {
    "nvcc": "the CUDA toolkit",
    "nvdisasm": "the CUDA toolkit, or the package nvidia-cuda-nvdisasm",
}


def require(name: str) -> str:
    """Returns the path of a tool of the CUDA toolkit.

    Raises :class:`NvidiaError` if it is missing.
    """
    found = tool(name)
    if found is None:
        raise NvidiaError(f"{name} is needed: {_SOURCES[name]}")
    return found


def compile_kernel(key: ShaderKey, family: str) -> Kernel:
    """Returns the kernel as ptxas compiles it for a family such as ``sm_89``.

    Raises :class:`NvidiaError` if Slang has no CUDA for it, or a tool is missing.
    """
    disassembler = require("nvdisasm")
    with tempfile.TemporaryDirectory(prefix="cml-nvidia-") as folder:
        report = assemble(key, family, Path(folder))
        code = subprocess.run(
            [disassembler, "-c", str(Path(folder, BINARY))],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    return _kernel(report, code, family)


def assemble(key: ShaderKey, family: str, folder: Path) -> str:
    """Writes the kernel's machine code into the folder, and returns the report of ptxas.

    Raises :class:`NvidiaError` if Slang has no CUDA for it, or nvcc is missing or refuses it.
    """
    nvcc = require("nvcc")
    try:
        source = compilers.compile(compilers.Request(resolved_source(key), key.path, "cuda"))
    except compilers.CompilerError as error:
        raise NvidiaError(f"Slang has no CUDA for it: {_first_error(str(error))}") from None
    path = folder / "kernel.cu"
    path.write_bytes(source.rstrip(b"\0"))
    compiled = subprocess.run(
        [nvcc, f"-arch={family}", "-cubin", "-O3", "-w", _HALVES, "-Xptxas", "-v",
         "-o", str(folder / BINARY), str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if compiled.returncode:
        raise NvidiaError(f"nvcc refuses Slang's CUDA: {_first_error(compiled.stderr)}")
    return compiled.stderr


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
