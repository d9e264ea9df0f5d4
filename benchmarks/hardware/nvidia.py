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


def compile_kernel(key: ShaderKey, family: str) -> Kernel:
    """Returns the kernel as ptxas compiles it for a family such as ``sm_89``.

    Raises :class:`NvidiaError` if Slang has no CUDA for it, or a tool is missing.
    """
    nvcc, disassembler = tool("nvcc"), tool("nvdisasm")
    if nvcc is None or disassembler is None:
        raise NvidiaError(
            "nvcc and nvdisasm are needed: the CUDA toolkit, or for the second the package "
            "nvidia-cuda-nvdisasm"
        )
    try:
        source = compilers.compile(compilers.Request(resolved_source(key), key.path, "cuda"))
    except compilers.CompilerError as error:
        raise NvidiaError(f"Slang has no CUDA for it: {_first_error(str(error))}") from None
    with tempfile.TemporaryDirectory(prefix="cml-nvidia-") as folder:
        path, binary = Path(folder, "kernel.cu"), Path(folder, "kernel.cubin")
        path.write_bytes(source.rstrip(b"\0"))
        compiled = subprocess.run(
            [nvcc, f"-arch={family}", "-cubin", "-O3", "-w", "-Xptxas", "-v", "-o", str(binary),
             str(path)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if compiled.returncode:
            raise NvidiaError(f"nvcc refuses Slang's CUDA: {_first_error(compiled.stderr)}")
        code = subprocess.run(
            [disassembler, "-c", str(binary)], capture_output=True, text=True, check=True
        ).stdout
    return _kernel(compiled.stderr, code, family)


def _kernel(report: str, code: str, family: str) -> Kernel:
    registers = _number(_REGISTERS_TEXT, report)
    warp = -(-max(registers, 1) * _LANES // _UNIT) * _UNIT
    spills = _SPILLS_TEXT.search(report)
    listing = nvidia_listing(code)
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
