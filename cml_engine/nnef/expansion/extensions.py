"""The fragment libraries beside NNEF's standard library: the engine's extensions, and tract's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

from cml_engine.nnef.expansion.signatures import Signature, signature_of
from cml_engine.nnef.text.lexer import SourceText
from cml_engine.nnef.text.parser import parse_fragments
from cml_engine.nnef.text.syntax_tree import Fragment

EXTENSIONS_FILE = "extensions.nnef"
TRACT_FILE = "tract.nnef"


@cache
def library_source(file: str) -> SourceText:
    """Returns the text of a library, a file in this package, such as ``extensions.nnef``."""
    text = resources.files("cml_engine.nnef").joinpath(file).read_text("ascii")
    return SourceText(text, file)


@cache
def library_fragments(file: str) -> Mapping[str, Fragment]:
    """Returns the fragments of a library file by name.

    Operators that NNEF can express have a body.
    """
    found = parse_fragments(library_source(file).text, file)
    return {fragment.name: fragment for fragment in found}


@cache
def library_signatures(file: str) -> Mapping[str, Signature]:
    source = library_source(file)
    return {name: signature_of(f, source) for name, f in library_fragments(file).items()}


def extension_source() -> SourceText:
    return library_source(EXTENSIONS_FILE)


def extension_fragments() -> Mapping[str, Fragment]:
    return library_fragments(EXTENSIONS_FILE)


def extension_signatures() -> Mapping[str, Signature]:
    return library_signatures(EXTENSIONS_FILE)
