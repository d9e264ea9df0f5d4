"""Recognises files that are given in place of a model by mistake, from their first bytes."""

from __future__ import annotations

import re

#: the bytes to read
HEAD_BYTES = 512

_UNPACK = "unpack it and give the model in it"
_EXPORT = "export the model as ONNX (cml docs your_model)"
#: by the first bytes: what the file is, and the next step
_BINARY = {
    b"PK\3\4": ("a zip archive", _UNPACK),
    b"PK\5\6": ("a zip archive", _UNPACK),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", _UNPACK),
    b"\xfd7zXZ\0": ("packed by xz", "unpack it"),
    b"BZh": ("packed by bzip2", "unpack it"),
    b"\x28\xb5\x2f\xfd": ("packed by zstd", "unpack it"),
    b"\x1f\x8b": ("packed by gzip", "unpack it"),
    b"Rar!\x1a\x07": ("a rar archive", _UNPACK),
    b"N\xef": ("a tensor file of NNEF", "give the folder with its graph.nnef"),
    b"\x93NUMPY": ("an array of NumPy's", "give the model that it is an input of"),
    b"\x89HDF\r\n\x1a\n": ("an HDF5 file, as Keras writes them", _EXPORT),
    b"GGUF": ("a GGUF file of weights without a network", _EXPORT),
    b"\x89PNG": ("a picture", "give the model"),
    b"\xff\xd8\xff": ("a picture", "give the model"),
    b"\xdd\x85\x76\0": (
        "ncnn's binary form of a .param",
        "give the .param of text that ncnn2mem made it from, for this one has no names",
    ),
}
#: magic numbers behind a length of four bytes
_FLATBUFFERS = {
    b"TFL3": ("a TensorFlow Lite model", _EXPORT),
    b"ORTM": ("a model in ONNX Runtime's own format", "give the .onnx that it was made from"),
}
_PICKLE = re.compile(rb"\x80[\2-\5](?:\x95|[}\]()c\x8a])")
#: a name in the zip archives that PyTorch writes
_PICKLED_IN = b"/data.pkl"
_SAFETENSORS = re.compile(rb'.{4}\0{4}\{\s*"', re.DOTALL)
_LFS = b"version https://git-lfs.github.com/spec/"
#: the bytes of a pointer that suffice to recognise it
_LFS_BYTES = 16
_PAGE = re.compile(rb"\s*(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)\b", re.I | re.DOTALL)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def misplaced_file(head: bytes) -> str | None:
    """Returns what a file is and the next step, if no model and no tensors can begin like it.

    Such a file stands where another one should: a pointer of Git LFS, or a web page.
    """
    head = head.removeprefix(_BYTE_ORDER_MARK)
    if head.startswith(_LFS) or (len(head) >= _LFS_BYTES and _LFS.startswith(head)):
        return "a pointer of Git LFS in place of the file: fetch the file, with 'git lfs pull'"
    if _PAGE.match(head):
        return "a web page: download the file itself, not the page that shows it"
    return None


def foreign_file(head: bytes) -> str | None:
    """Returns what a file is and the next step, if its first bytes are those of a known other type.

    ``head`` has the first ``HEAD_BYTES`` bytes, or all if there are fewer.
    """
    if misplaced := misplaced_file(head):
        return misplaced
    known = next((kind for magic, kind in _BINARY.items() if head.startswith(magic)), None)
    known = known or _FLATBUFFERS.get(head[4:8])
    if _PICKLE.match(head) or (head.startswith(b"PK\3\4") and _PICKLED_IN in head):
        known = "a pickle, as PyTorch writes them", _EXPORT
    if known is None and _SAFETENSORS.match(head):
        known = "a safetensors file of weights without a network", _EXPORT
    if known is None and head[257:262] == b"ustar":
        known = "a tar archive that is not packed", "give the .tgz of an NNEF folder"
    if known is None and not head:
        known = "empty", "export or download it again"
    if known is None and not any(head) and len(head) >= _ZEROS:
        known = "full of zeros, as downloads are that did not end", "download it again"
    return ": ".join(known) if known else None


#: the zeros at the beginning of a file that is taken for a download that did not end
_ZEROS = 64


def foreign_text(head: bytes) -> str | None:
    """Returns what a text is and the next step, if the first bytes of a file are a text.

    It is meant for formats that are not text.
    """
    text = head.removeprefix(_BYTE_ORDER_MARK)
    if any(byte < 32 and byte not in b"\t\n\r\f" for byte in text):
        return None
    line = text.decode(errors="replace").strip().partition("\n")[0].strip()[:40]
    return f"text that begins with '{line}': export or download it again"
