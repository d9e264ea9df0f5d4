"""Compiles, writes and reads the kernels of a cooked file: compressed SPIR-V and WGSL of every
variant."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from cml_engine.compiler.plan import KernelCode
from cml_engine.cooked.reader import Container, Section, damaged
from cml_engine.cooked.schema import (
    ALL_FLAGS,
    CODE,
    F16,
    KERNELS,
    MOST_PARAMS,
    MOST_SMALLER,
    MOST_TENSORS,
    SUBGROUPS,
    TRUSTED,
    Code,
    KernelRow,
    KernelsHead,
)
from cml_engine.cooked.wgsl import MOST_WGSL, check_wgsl
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
    """The compiled code of a kernel variant: ``spirv`` and ``wgsl``, each empty if the variant
    lacks it."""

    digest: str
    label: str
    params_bytes: int
    tensors: int
    trusted: bool
    spirv: bytes
    wgsl: str

    @property
    def flags(self) -> int:
        """The flags of the kernel in a cooked file: the sum of ``TRUSTED``, ``SUBGROUPS`` and
        ``F16``, each if it applies."""
        words = memoryview(self.spirv).cast("I") if self.spirv else ()
        capabilities = _capabilities(words)
        subgroups = "enable subgroups;" in self.wgsl or any(
            c in _GROUP_NON_UNIFORM for c in capabilities
        )
        f16 = re.search(r"\benable f16;", self.wgsl) is not None or _FLOAT16 in capabilities
        return TRUSTED * self.trusted | SUBGROUPS * subgroups | F16 * f16


def digest_of(key: ShaderKey) -> str:
    """Returns the digest, in hexadecimal, that identifies a kernel variant in a cooked file."""
    return digest(key, "spirv")


def compiled(key: ShaderKey, browser: bool = False) -> Codes:
    """Compiles a kernel variant to SPIR-V and WGSL, and returns both.

    The engine's kernels have SPIR-V, and WGSL if they can be expressed in it; some have WGSL
    only. A game's kernels, and with ``browser`` all, have SPIR-V only if WGSL cannot express them
    (:func:`compile_kernel` explains why).
    """
    try:
        wgsl = compile_wgsl(key)
    except ShaderCompileError:
        if key.wgsl_only:
            raise
        wgsl = ""
    spirv: bytes | str = b""
    if not wgsl:
        spirv = compile_kernel(key) if key.interface else compile_spirv(key)
    elif not (browser or key.interface or key.wgsl_only):
        spirv = compile_spirv(key)
    assert isinstance(spirv, bytes)
    return Codes(digest_of(key), key.label, key.params_bytes, key.tensors, key.trusted, spirv, wgsl)


def write_kernels(kernels: Sequence[Codes], sections: Sections) -> None:
    """Adds the sections ``kernels`` (records) and ``code`` (compressed code) to ``sections``."""
    records, code = bytearray(KernelsHead(count=len(kernels)).to_bytes()), bytearray()
    for kernel in kernels:
        codes: list[Code] = []
        for text in (kernel.spirv, kernel.wgsl.encode()):
            packed = zlib.compress(text, 9) if text else b""
            offset = len(code) if packed else 0
            codes.append(Code(offset=offset, packed=len(packed), nbytes=len(text)))
            code += packed
        spirv, wgsl = codes
        records += KernelRow(
            digest=bytes.fromhex(kernel.digest),
            label=sections.strings.put(kernel.label),
            params_bytes=kernel.params_bytes,
            tensors=kernel.tensors,
            flags=kernel.flags,
            spirv=spirv,
            wgsl=wgsl,
        ).to_bytes()
    sections.add(KERNELS, bytes(records))
    sections.add(CODE, bytes(code))


@dataclass(frozen=True, slots=True)
class Cooked:
    """A kernel as read from a file: its code, and the flags of the features that a device needs
    to run it."""

    digest: str
    flags: int
    kernel: KernelCode
    has_spirv: bool
    has_wgsl: bool
    #: why the kernel may not run, "" if it may
    refusal: str = ""


def read_kernels(file: Container, trusted: bool) -> list[Cooked]:
    """Returns the kernels of a file in order; their code is unpacked on first use.

    Files that are not trusted run their WGSL, because WGSL compilers are built for untrusted web
    pages and SPIR-V compilers do not validate their input. Raises :class:`CorruptArtifact` for
    invalid records.
    """
    table = file.section(KERNELS)
    code = file.section(CODE)
    count = table.head(KernelsHead).count
    if len(table) != KernelsHead.SIZE + count * KernelRow.SIZE:
        raise damaged(f"{count} kernels in {len(table)} bytes")
    rows = table.rows(KernelRow, count, KernelsHead.SIZE, "its kernels")
    _check_places(rows, len(code))
    return [_read(file, code, row, trusted) for row in rows]


def _check_places(rows: Sequence[KernelRow], nbytes: int) -> None:
    """Raises :class:`CorruptArtifact` unless the compressed code of all kernels fills ``nbytes``
    bytes without gaps, each byte used once."""
    end = 0
    for row in rows:
        for code in (row.spirv, row.wgsl):
            if code.packed and code.offset != end:
                raise damaged(f"the code of a kernel lies at {code.offset:,}, expected {end:,}")
            end += code.packed
    if end != nbytes:
        raise damaged(f"its kernels have {end:,} bytes of code of {nbytes:,}")


def _read(file: Container, code: Section, row: KernelRow, trusted: bool) -> Cooked:
    label = file.string(row.label)
    params_bytes, tensors, flags = row.params_bytes, row.tensors, row.flags
    subject = f"kernel '{label}'"
    if flags & ~ALL_FLAGS:
        raise damaged(f"{subject} has flags that mean nothing")
    are_sizes_valid = 0 < params_bytes <= MOST_PARAMS and 0 < tensors <= MOST_TENSORS
    if params_bytes % 16 or not are_sizes_valid:
        raise damaged(f"{subject} has {params_bytes} bytes of parameters, {tensors} tensors")
    spirv = _code(code, row.spirv, subject)
    wgsl = _code(code, row.wgsl, subject)
    if spirv is not None and spirv[1] % 4:
        raise damaged(f"{subject}: its SPIR-V has {spirv[1]} bytes")
    as_spirv = spirv is not None and (trusted or wgsl is None)
    used_code = spirv if as_spirv else wgsl
    if used_code is None:
        raise damaged(f"{subject} has no code")
    refusal = ""
    if as_spirv and not trusted:
        refusal = (
            f"{subject} has SPIR-V only, which runs from trusted files only: load a file of your "
            "own with trusted=True (--trusted)"
        )
    content = hashlib.sha256(used_code[0]).hexdigest()
    unpack = partial(_unpacked, *used_code, subject, as_spirv, trusted)
    is_safe = trusted and bool(flags & TRUSTED)
    kernel = KernelCode(label, tensors, params_bytes, is_safe, content, unpack)
    return Cooked(row.digest.hex(), flags, kernel, spirv is not None, wgsl is not None, refusal)


def _code(code: Section, row: Code, subject: str) -> tuple[memoryview, int] | None:
    if not row.packed:
        if row.offset or row.nbytes:
            raise damaged(f"{subject} has {row.nbytes} bytes of code in none")
        return None
    if not 0 < row.nbytes <= row.packed * MOST_SMALLER:
        raise damaged(f"{subject}: {row.packed} bytes cannot become {row.nbytes}")
    return code.span(row.offset, row.packed, subject), row.nbytes


def _unpacked(
    packed: memoryview, nbytes: int, subject: str, spirv: bool, trusted: bool
) -> bytes | str:
    if not trusted and nbytes > MOST_WGSL:
        raise damaged(f"{subject}: its WGSL is longer than {MOST_WGSL:,} bytes")
    unpacker = zlib.decompressobj()
    try:
        code = unpacker.decompress(packed, nbytes + 1)
    except zlib.error as error:
        raise damaged(f"{subject}: its code cannot be unpacked: {error}") from None
    if len(code) != nbytes or not unpacker.eof or unpacker.unused_data:
        raise damaged(f"{subject}: its code does not have the {nbytes} bytes that it states")
    if spirv:
        return _checked_spirv(code, subject)
    try:
        text = for_naga(code.decode())
    except UnicodeDecodeError:
        raise damaged(f"{subject}: its WGSL is no text") from None
    if not trusted:
        check_wgsl(text, subject)
    return text


def _checked_spirv(code: bytes, subject: str) -> bytes:
    """Returns ``code`` unchanged if it is SPIR-V whose last instruction ends at its end.

    Raises :class:`CorruptArtifact` otherwise, because drivers may not check it. ``subject`` begins
    the message.
    """
    words = memoryview(code).cast("I")
    position = 5
    while position < len(words) and words[position] >> 16:
        position += words[position] >> 16
    if len(words) < 5 or words[0] != _MAGIC or position != len(words):
        raise damaged(f"{subject}: its code is no SPIR-V")
    return code


def _capabilities(words: Sequence[int] | memoryview) -> set[int]:
    capabilities = set()
    position = 5
    while position < len(words) and words[position] & 0xFFFF == _OP_CAPABILITY:
        capabilities.add(int(words[position + 1]))
        position += words[position] >> 16
    return capabilities
