"""The engine's own library of fragments, ``extensions.nnef``: what models need and NNEF lacks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

from cml_engine.nnef.ast import Fragment
from cml_engine.nnef.lexer import SourceText
from cml_engine.nnef.parser import parse_fragments
from cml_engine.nnef.signatures import Signature, signature_of

EXTENSIONS_FILE = "extensions.nnef"


@cache
def extension_source() -> SourceText:
    """The text of the library."""
    text = resources.files("cml_engine.nnef").joinpath(EXTENSIONS_FILE).read_text("ascii")
    return SourceText(text, EXTENSIONS_FILE)


@cache
def extension_fragments() -> Mapping[str, Fragment]:
    """The declarations by name; what the engine can say in NNEF has a body."""
    found = parse_fragments(extension_source().text, EXTENSIONS_FILE)
    return {fragment.name: fragment for fragment in found}


@cache
def extension_signatures() -> Mapping[str, Signature]:
    source = extension_source()
    return {name: signature_of(f, source) for name, f in extension_fragments().items()}
