"""Resolves operator names: the standard's operators, a model's fragments, registered operators.

A name is looked up in this order: the model's own fragments, the standard, the declarations of
registered operators, the extensions (``extensions.nnef``), and tract's operators
(``tract.nnef``). A model may redefine a standard operator only if the standard defines it by a
body (``silu``, which older files contain).

The engine's implementation is used if it has the same parameters as the declaration and the
model gives no other body. Otherwise the fragment's body is expanded; for a declaration without a
body, that of the extension. Bodies of the standard and of the libraries never call a model's
fragments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from cml_engine.errors import UnsupportedOp
from cml_engine.nnef.expansion.signatures import (
    EXTENSIONS,
    STDLIB,
    TRACT,
    FragmentFile,
    Signature,
    signature_of,
    unknown_operator,
)
from cml_engine.nnef.text.lexer import SourceText
from cml_engine.nnef.text.printer import print_fragment
from cml_engine.nnef.text.syntax_tree import Fragment, called_operators
from cml_engine.nnef.warning import warn


@dataclass(frozen=True, slots=True)
class Operator:
    """The operator that a name resolves to: its signature and its fragment.

    ``native`` is True if the engine implements it, ``standard`` if it is not the model's own, and
    ``text`` is the fragment's text.
    """

    name: str
    signature: Signature
    fragment: Fragment
    text: SourceText
    native: bool
    standard: bool


class Library:
    """The operators that one model can call, by name.

    Parameters
    ----------
    native : returns True for the operators that the engine implements.
    declarations : fragment declarations of registered operators, by name.
    """

    def __init__(
        self, native: Callable[[str], bool], declarations: Mapping[str, str] | None = None
    ) -> None:
        self._native = native
        self._declared_files = {
            name: FragmentFile(f"<declaration of {name}>", text)
            for name, text in (declarations or {}).items()
        }
        self._model_fragments: dict[str, tuple[Fragment, SourceText]] = {}
        self._resolved: dict[tuple[str, bool], Operator] = {}

    def add_fragments(self, fragments: Iterable[Fragment], text: SourceText) -> None:
        """Adds a model's own fragments, which are in ``text``.

        Raises an error for a name that is declared twice. A standard operator's name is an error
        too, unless both the standard and the fragment have a body.
        """
        for fragment in fragments:
            standard = STDLIB.fragments.get(fragment.name)
            if standard is not None and (standard.body is None or fragment.body is None):
                raise text.error(
                    f"'{fragment.name}' is a standard operator: give the fragment another name",
                    fragment.pos,
                )
            if fragment.name in self._model_fragments:
                raise text.error(f"fragment '{fragment.name}' is declared twice", fragment.pos)
            self._model_fragments[fragment.name] = (fragment, text)

    def lookup(self, name: str, of_model: bool = True) -> Operator:
        """Returns the operator of a name: the model's own with ``of_model``, or else the library's.

        Raises :class:`UnsupportedOp` if there is no implementation and no body.
        """
        key = name, of_model and name in self._model_fragments
        operator = self._resolved.get(key)
        if operator is None:
            resolve = self._model_operator if key[1] else self._library_operator
            operator = self._resolved[key] = resolve(name)
        return operator

    def used_declarations(self, ops: Iterable[str]) -> dict[str, str]:
        """Returns the text of the declarations that a file with these operators needs, by name.

        It includes fragments that the declared bodies call. Standard operators need none.
        """
        declarable = {
            *self._model_fragments,
            *self._declared_files,
            *EXTENSIONS.fragments,
        } - STDLIB.fragments.keys()
        pending, declarations = list(ops), dict[str, str]()
        while pending:
            name = pending.pop()
            if name in declarable and name not in declarations:
                fragment = self.lookup(name).fragment
                declarations[name] = print_fragment(fragment)
                pending += called_operators(fragment)
        return dict(sorted(declarations.items()))

    def _file_of(self, name: str) -> FragmentFile | None:
        """Returns the text that declares an operator that is not the model's own, or None."""
        if name in STDLIB.fragments or name not in self._declared_files:
            files = (file for file in (STDLIB, EXTENSIONS, TRACT) if name in file.fragments)
            return next(files, None)
        return self._declared_files[name]

    def _library_operator(self, name: str) -> Operator:
        file = self._file_of(name)
        if file is None:
            names = {
                *STDLIB.fragments,
                *self._model_fragments,
                *self._declared_files,
                *EXTENSIONS.fragments,
            }
            raise UnsupportedOp(unknown_operator(name, sorted(names)))
        native = name in NEVER_NODES or (file is not TRACT and self._native(name))
        sig, fragment = _declaration(file, name)
        return _check_usable(Operator(name, sig, fragment, file.source, native, True))

    def _model_operator(self, name: str) -> Operator:
        fragment, text = self._model_fragments[name]
        sig, file = signature_of(fragment, text), self._file_of(name)
        engine_signature = None if file in (None, STDLIB, TRACT) else _declaration(file, name)[0]
        fits = (engine_signature is None or engine_signature.fits(sig)) and not self._is_redefined(
            fragment, file
        )
        if not fits and fragment.body is None:
            raise UnsupportedOp(
                f"'{name}' is registered as {engine_signature}, but this model declares it as "
                f"{sig}: make them equal, or give the fragment a body"
            )
        if not fits and name in self._declared_files:
            message = f"'{name}' is not the registered {engine_signature}: its body is expanded"
            warn(message, text.at(fragment.pos))
        native = fits and self._native(name)
        if not native and fragment.body is None and name in EXTENSIONS.fragments:
            # the model's own defaults apply
            return replace(self._library_operator(name), signature=sig)
        return _check_usable(Operator(name, sig, fragment, text, native, False))

    def _is_redefined(self, fragment: Fragment, file: FragmentFile | None) -> bool:
        """Returns True if a model gives a standard operator or an extension another body."""
        if file not in (STDLIB, EXTENSIONS) or fragment.body is None:
            return False
        return print_fragment(file.fragments[fragment.name]) != print_fragment(fragment)


def _declaration(file: FragmentFile, name: str) -> tuple[Signature, Fragment]:
    return file.signatures[name], file.fragments[name]


def _check_usable(operator: Operator) -> Operator:
    if operator.native or operator.fragment.body is not None:
        return operator
    subject = "standard operator" if operator.standard else "fragment without a body"
    raise UnsupportedOp(
        f"{subject} '{operator.name}' is not implemented here: register it (--ops FILE.py, "
        "cml.register), or express it with other operators"
    )


#: Extensions whose expansion depends on the call; ``evaluator.py`` writes it.
EXPANDED_BY_RULE = frozenset(("einsum",))

#: Operators that never become nodes.
NEVER_NODES = EXPANDED_BY_RULE | {
    "external", "variable", "constant", "update", "tract_core_external", "tract_core_cast"
}  # fmt: skip
