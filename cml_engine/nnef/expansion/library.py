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
from cml_engine.nnef.expansion.extensions import (
    TRACT_FILE,
    extension_fragments,
    extension_signatures,
    extension_source,
    library_fragments,
    library_signatures,
    library_source,
)
from cml_engine.nnef.expansion.signatures import (
    Signature,
    declared_signature,
    signature_of,
    standard_fragments,
    standard_signatures,
    standard_source,
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
        self._declarations = dict(declarations or {})
        self._own: dict[str, tuple[Fragment, SourceText]] = {}
        self._resolved: dict[tuple[str, bool], Operator] = {}

    def add_fragments(self, fragments: Iterable[Fragment], text: SourceText) -> None:
        """Adds a model's own fragments, which are in ``text``.

        Raises an error for a name that is declared twice. A standard operator's name is an error
        too, unless both the standard and the fragment have a body.
        """
        for fragment in fragments:
            standard = standard_fragments().get(fragment.name)
            if standard is not None and (standard.body is None or fragment.body is None):
                message = (
                    f"'{fragment.name}' is a standard operator: give the fragment another name"
                )
                raise text.error(message, fragment.pos)
            if fragment.name in self._own:
                raise text.error(f"fragment '{fragment.name}' is declared twice", fragment.pos)
            self._own[fragment.name] = (fragment, text)

    def lookup(self, name: str, of_model: bool = True) -> Operator:
        """Returns the operator of a name: the model's own with ``of_model``, or else the library's.

        Raises :class:`UnsupportedOp` if there is no implementation and no body.
        """
        key = name, of_model and name in self._own
        found = self._resolved.get(key)
        if found is None:
            found = self._resolved[key] = self._of_model(name) if key[1] else self._resolve(name)
        return found

    def used_declarations(self, ops: Iterable[str]) -> dict[str, str]:
        """Returns the text of the declarations that a file with these operators needs, by name.

        It includes fragments that the declared bodies call. Standard operators need none.
        """
        wanted, found = list(ops), dict[str, str]()
        while wanted:
            name = wanted.pop()
            if name in found or name in standard_fragments() or not self._knows(name):
                continue
            fragment = self.lookup(name).fragment
            found[name] = print_fragment(fragment)
            wanted += called_operators(fragment)
        return dict(sorted(found.items()))

    def _knows(self, name: str) -> bool:
        known = (self._own, self._declarations, extension_fragments())
        return any(name in names for names in known)

    def _resolve(self, name: str) -> Operator:
        if name in standard_fragments():
            return self._standard(name)
        if name in self._declarations:
            sig, fragment = self._parse_declared(name)
            text = SourceText(self._declarations[name], f"<declaration of {name}>")
            return self._check_usable(Operator(name, sig, fragment, text, self._native(name), True))
        if name in extension_fragments():
            return self._extension(name)
        if name in library_fragments(TRACT_FILE):
            return self._tract(name)
        known = {*standard_fragments(), *self._own, *self._declarations, *extension_fragments()}
        raise UnsupportedOp(unknown_operator(name, sorted(known)))

    def _standard(self, name: str) -> Operator:
        sig, fragment = standard_signatures()[name], standard_fragments()[name]
        text, native = standard_source(), name in GRAPH_LEVEL or self._native(name)
        return self._check_usable(Operator(name, sig, fragment, text, native, True))

    def _of_model(self, name: str) -> Operator:
        fragment, text = self._own[name]
        sig = signature_of(fragment, text)
        ours = self._our_signature(name)
        fits = (ours is None or ours.fits(sig)) and not self._is_redefined(fragment)
        if not fits and fragment.body is None:
            raise UnsupportedOp(
                f"'{name}' is registered as {ours}, but this model declares it as {sig}: "
                "make them equal, or give the fragment a body"
            )
        if not fits and name in self._declarations:
            message = f"'{name}' is not the registered {ours}: its body is expanded"
            warn(message, text.at(fragment.pos))
        native = fits and self._native(name)
        if not native and fragment.body is None and name in extension_fragments():
            extension = self._extension(name)  # the model's own defaults apply
            return replace(extension, signature=sig)
        return self._check_usable(Operator(name, sig, fragment, text, native, False))

    def _is_redefined(self, fragment: Fragment) -> bool:
        """Returns True if a model gives a standard operator or an extension another body."""
        ours = {**standard_fragments(), **extension_fragments()}.get(fragment.name)
        if ours is None or fragment.body is None or fragment.name in self._declarations:
            return False
        return print_fragment(ours) != print_fragment(fragment)

    def _our_signature(self, name: str) -> Signature | None:
        """Returns the signature of an operator of the game or of the extensions, or None."""
        if name in self._declarations:
            return self._parse_declared(name)[0]
        return extension_signatures().get(name)

    def _extension(self, name: str) -> Operator:
        sig, fragment = extension_signatures()[name], extension_fragments()[name]
        native = name in EXPANDED_BY_RULE or self._native(name)
        return self._check_usable(Operator(name, sig, fragment, extension_source(), native, True))

    def _tract(self, name: str) -> Operator:
        sig = library_signatures(TRACT_FILE)[name]
        fragment = library_fragments(TRACT_FILE)[name]
        native, text = name in GRAPH_LEVEL, library_source(TRACT_FILE)
        return self._check_usable(Operator(name, sig, fragment, text, native, True))

    def _parse_declared(self, name: str) -> tuple[Signature, Fragment]:
        return declared_signature(self._declarations[name], f"<declaration of {name}>")

    def _check_usable(self, operator: Operator) -> Operator:
        if operator.native or operator.fragment.body is not None:
            return operator
        whose = "standard operator" if operator.standard else "fragment without a body"
        raise UnsupportedOp(
            f"{whose} '{operator.name}' is not implemented here: register it (--ops FILE.py, "
            "cml.register), or express it with other operators"
        )


#: Extensions whose expansion depends on the call; ``fragment_evaluator.py`` writes it.
EXPANDED_BY_RULE = frozenset(("einsum",))

#: Operators that never become nodes.
GRAPH_LEVEL = frozenset(
    ("external", "variable", "constant", "update", "tract_core_external", "tract_core_cast")
)
