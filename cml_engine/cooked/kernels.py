"""The kernels of a cooked file: compressed SPIR-V and WGSL of every variant."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cml_engine.compiler.plan import KernelCode
from cml_engine.cooked.form import (
    ALL_FLAGS,
    CODE,
    COUNT,
    F16,
    KERNEL,
    KERNELS,
    MOST_PARAMS,
    MOST_SMALLER,
    MOST_TENSORS,
    SUBGROUPS,
    TRUSTED,
)
from cml_engine.cooked.reader import Container, Section, damaged
from cml_engine.cooked.wgsl import MOST_BYTES, check_wgsl
from cml_engine.cooked.writer import Sections
from cml_engine.errors import ShaderCompileError
from cml_engine.gpu.shaders.hlsl import (
    ShaderKey,
    compile_kernel,
    compile_spirv,
    compile_wgsl,
    digest,
    for_naga,
)

_MAGIC = 0x07230203
#: the SPIR-V instruction that declares a capability, and the numbers of some capabilities
_OP_CAPABILITY = 17
_FLOAT16, _GROUP_NON_UNIFORM = 9, range(61, 69)


@dataclass(frozen=True, slots=True)
class Codes:
    """The code of a kernel variant for each platform that supports it."""

    digest: str
    label: str
    params_bytes: int
    tensors: int
    trusted: bool
    spirv: bytes
    wgsl: str

    @property
    def flags(self) -> int:
        """The flags of the kernel: the features that it needs, and if it is trusted."""
        words = memoryview(self.spirv).cast("I") if self.spirv else ()
        able = _capabilities(words)
        subgroups = "enable subgroups;" in self.wgsl or any(c in _GROUP_NON_UNIFORM for c in able)
        f16 = re.search(r"\benable f16;", self.wgsl) is not None or _FLOAT16 in able
        return TRUSTED * self.trusted | SUBGROUPS * subgroups | F16 * f16


def digest_of(key: ShaderKey) -> str:
    """Returns the digest that identifies a kernel variant."""
    return digest(key, "spirv")


def compiled(key: ShaderKey) -> Codes:
    """Compiles a variant for all platforms.

    The engine's kernels have SPIR-V, and WGSL if they can be expressed in it; some have WGSL
    only. A game's kernels have SPIR-V only if WGSL cannot express them (:func:`compile_kernel`
    explains why).
    """
    try:
        wgsl = compile_wgsl(key)
    except ShaderCompileError:
        if key.wgsl_only:
            raise
        wgsl = ""
    spirv: bytes | str = b""
    if not key.interface and not key.wgsl_only:
        spirv = compile_spirv(key)
    elif not wgsl:
        spirv = compile_kernel(key)
    assert isinstance(spirv, bytes)
    return Codes(digest_of(key), key.label, key.params_bytes, key.tensors, key.trusted, spirv, wgsl)


def write_kernels(kernels: Sequence[Codes], sections: Sections) -> None:
    """Writes the sections ``kernels`` and ``code``."""
    records, code = bytearray(COUNT.pack(len(kernels), 0)), bytearray()
    for kernel in kernels:
        places: list[int] = []
        for text in (kernel.spirv, kernel.wgsl.encode()):
            packed = zlib.compress(text, 9) if text else b""
            places += [len(code) if packed else 0, len(packed), len(text)]
            code += packed
        records += KERNEL.pack(
            bytes.fromhex(kernel.digest),
            *sections.strings.put(kernel.label),
            kernel.params_bytes,
            kernel.tensors,
            kernel.flags,
            0,
            *places,
            0,
        )
    sections.add(KERNELS, bytes(records))
    sections.add(CODE, bytes(code))


@dataclass(frozen=True, slots=True)
class Cooked:
    """A kernel of a file: its code, and the features that a device needs to run it."""

    digest: str
    flags: int
    kernel: KernelCode
    has_spirv: bool
    has_wgsl: bool
    #: why the kernel may not run, "" if it may
    refusal: str = ""


def read_kernels(file: Container, trusted: bool) -> list[Cooked]:
    """Returns the kernels of a file, whose code is unpacked on first use.

    Files that are not trusted run their WGSL, because WGSL compilers are built for untrusted web
    pages and SPIR-V compilers do not validate their input.
    """
    table = file.section(KERNELS)
    code = file.section(CODE)
    count, reserved = table.unpack(COUNT, 0)
    if reserved or len(table) != COUNT.size + count * KERNEL.size:
        raise damaged(f"{count} kernels in {len(table)} bytes")
    records = [table.unpack(KERNEL, COUNT.size + i * KERNEL.size) for i in range(count)]
    _check_places(records, len(code))
    return [_read(file, code, record, trusted) for record in records]


def _check_places(records: Sequence[Sequence[Any]], nbytes: int) -> None:
    """Raises :class:`CorruptArtifact` unless the compressed code is contiguous and used once."""
    end = 0
    for record in records:
        for offset, packed in ((record[7], record[8]), (record[10], record[11])):
            if packed and offset != end:
                raise damaged(f"the code of a kernel lies at {offset:,}, wanted {end:,}")
            end += packed
    if end != nbytes:
        raise damaged(f"its kernels have {end:,} bytes of code of {nbytes:,}")


def _read(file: Container, code: Section, record: Sequence[Any], trusted: bool) -> Cooked:
    label = file.string(record[1], record[2])
    params_bytes, tensors, flags, reserved = record[3:7]
    what = f"kernel '{label}'"
    if reserved or record[13] or flags & ~ALL_FLAGS:
        raise damaged(f"{what} has flags or reserved fields that mean nothing")
    sizes = 0 < params_bytes <= MOST_PARAMS and 0 < tensors <= MOST_TENSORS
    if params_bytes % 16 or not sizes:
        raise damaged(f"{what} has {params_bytes} bytes of parameters, {tensors} tensors")
    spirv = _code(code, record[7:10], what)
    wgsl = _code(code, record[10:13], what)
    if spirv is not None and spirv[1] % 4:
        raise damaged(f"{what}: its SPIR-V has {spirv[1]} bytes")
    as_spirv = spirv is not None and (trusted or wgsl is None)
    taken = spirv if as_spirv else wgsl
    if taken is None:
        raise damaged(f"{what} has no code")
    refusal = ""
    if as_spirv and not trusted:
        refusal = (
            f"{what} has SPIR-V only, which runs from trusted files only: load a file of your own "
            "with trusted=True (--trusted)"
        )
    content = hashlib.sha256(taken[0]).hexdigest()
    unpack = partial(_unpacked, *taken, what, as_spirv, trusted)
    believed = trusted and bool(flags & TRUSTED)
    kernel = KernelCode(label, tensors, params_bytes, believed, content, unpack)
    return Cooked(record[0].hex(), flags, kernel, spirv is not None, wgsl is not None, refusal)


def _code(code: Section, place: Sequence[int], what: str) -> tuple[memoryview, int] | None:
    offset, packed, nbytes = place
    if not packed:
        if offset or nbytes:
            raise damaged(f"{what} has {nbytes} bytes of code in none")
        return None
    if not 0 < nbytes <= packed * MOST_SMALLER:
        raise damaged(f"{what}: {packed} bytes cannot become {nbytes}")
    return code.span(offset, packed, what), nbytes


def _unpacked(
    packed: memoryview, nbytes: int, what: str, spirv: bool, trusted: bool
) -> bytes | str:
    if not trusted and nbytes > MOST_BYTES:
        raise damaged(f"{what}: its WGSL is longer than {MOST_BYTES:,} bytes")
    unpacker = zlib.decompressobj()
    try:
        code = unpacker.decompress(packed, nbytes + 1)
    except zlib.error as error:
        raise damaged(f"{what}: its code cannot be unpacked: {error}") from None
    if len(code) != nbytes or not unpacker.eof or unpacker.unused_data:
        raise damaged(f"{what}: its code does not have the {nbytes} bytes that it states")
    if spirv:
        return _checked_spirv(code, what)
    try:
        text = for_naga(code.decode())
    except UnicodeDecodeError:
        raise damaged(f"{what}: its WGSL is no text") from None
    if not trusted:
        check_wgsl(text, what)
    return text


def _checked_spirv(code: bytes, what: str) -> bytes:
    """Returns the code if its SPIR-V instructions end at the end of the code.

    Raises :class:`CorruptArtifact` otherwise, because drivers may not check it.
    """
    words = memoryview(code).cast("I")
    at = 5
    while at < len(words) and words[at] >> 16:
        at += words[at] >> 16
    if len(words) < 5 or words[0] != _MAGIC or at != len(words):
        raise damaged(f"{what}: its code is no SPIR-V")
    return code


def _capabilities(words: Sequence[int] | memoryview) -> set[int]:
    found = set()
    at = 5
    while at < len(words) and words[at] & 0xFFFF == _OP_CAPABILITY:
        found.add(int(words[at + 1]))
        at += words[at] >> 16
    return found
