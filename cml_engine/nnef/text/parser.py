"""Parses declarations from tokens (NNEF 1.0.5, A.2); ``expressions.py`` parses expressions.

The grammar of each production is the comment above its method. The parser is a recursive descent
with one token of look-ahead, so its time is linear in the text.
"""

from __future__ import annotations

from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.nnef.text.expressions import ExpressionParser
from cml_engine.nnef.text.lexer import SourceText
from cml_engine.nnef.text.syntax_tree import (
    ArrayExpr,
    Assignment,
    Document,
    Expr,
    Fragment,
    FragmentParam,
    FragmentResult,
    GraphDef,
    Name,
    TupleExpr,
    Type,
)

#: The deepest nesting of array types such as ``integer[][]``.
_MAX_ARRAY_DIMS = 8


class Parser(ExpressionParser):
    """A recursive descent parser of documents and fragments, with a method per production."""

    # document ::= [version] {extension} {fragment} graph end
    def document(self) -> Document:
        version = self.version() if self.kind == "version" else None
        extensions: list[Name] = []
        symbols: list[str] = []
        while self.kind == "extension":
            names = self.extension()
            if names[0].id == "tract_symbol":
                symbols += [name.id for name in names[1:]]
                continue
            extensions += names
        fragments = self.fragments()
        graph = self.graph()
        if self.kind != "end":
            raise self.unexpected("the end of the file after the graph's '}'")
        return Document(version, tuple(extensions), fragments, graph, tuple(symbols))

    # version ::= "version" real ";"
    def version(self) -> str:
        self.expect("version")
        token = self.expect_token("real", "a version number like 1.0")
        self.expect(";")
        if token.text != "1.0":
            raise self.source.error(
                f"NNEF version {token.text} is not supported: wanted 1.0, export as NNEF 1.0",
                token.pos,
            )
        return token.text

    # extension ::= "extension" identifier {[","] identifier} ";"
    # (tract's assertions on symbols are not identifiers)
    def extension(self) -> list[Name]:
        self.expect("extension")
        names = [self.identifier("the extension's name")]
        while self.kind != ";":
            if names[0].id == "tract_assert" and self.kind != "end":
                self.skip()
                continue
            self.accept(",")
            names.append(self.identifier("an extension's name or ';'"))
        self.expect(";")
        return names

    # fragments ::= {fragment}
    def fragments(self) -> tuple[Fragment, ...]:
        found = []
        while self.kind == "fragment":
            found.append(self.fragment())
        return tuple(found)

    # fragment ::= "fragment" identifier [generic] "(" params ")" "->" "(" results ")" (body | ";")
    def fragment(self) -> Fragment:
        self.expect("fragment")
        name = self.identifier("the fragment's name")
        generic, default = self.generic_declaration()
        self.expect("(")
        params = self.listed(self.param, ")")
        self.expect("->")
        self.expect("(")
        results = self.listed(self.result, ")")
        body = None if self.accept(";") else self.body()
        return Fragment(
            name.id, tuple(params), tuple(results), body, generic, default, pos=name.pos
        )

    # generic ::= "<" "?" ["=" type-name] ">"
    def generic_declaration(self) -> tuple[bool, str | None]:
        if not self.accept("<"):
            return False, None
        self.expect("?")
        default = self.type_name() if self.accept("=") else None
        self.close_angle()
        return True, default

    # param ::= identifier ":" type ["=" expression]
    def param(self) -> FragmentParam:
        name = self.identifier("a parameter's name")
        self.expect(":")
        kind = self.type()
        default = self.expression() if self.accept("=") else None
        return FragmentParam(name.id, kind, default, pos=name.pos)

    # result ::= identifier ":" type
    def result(self) -> FragmentResult:
        name = self.identifier("a result's name")
        self.expect(":")
        return FragmentResult(name.id, self.type())

    # type ::= (type-name | "?" | "tensor" "<" [type-name | "?"] ">" | "(" types ")") {"[" "]"}
    def type(self) -> Type:
        self.enter()
        found, dims = self.simple_type(), 0
        while self.accept("["):
            self.expect("]")
            found, dims = Type("array", items=(found,)), dims + 1
            if dims > _MAX_ARRAY_DIMS:
                raise self.unexpected(f"at most {_MAX_ARRAY_DIMS} array dimensions")
        self.leave()
        return found

    def simple_type(self) -> Type:
        if self.accept("("):
            return Type("tuple", items=tuple(self.listed(self.type, ")")))
        if self.accept("tensor"):
            self.expect("<")
            element = "" if self.kind in (">", ">=") else self.element_type()
            self.close_angle()
            return Type("tensor", element)
        return Type("primitive", self.element_type())

    # element-type ::= type-name | "?"
    def element_type(self) -> str:
        return "?" if self.accept("?") else self.type_name()

    # graph ::= "graph" identifier "(" identifiers ")" "->" "(" identifiers ")" body
    def graph(self) -> GraphDef:
        self.expect("graph", "'graph'")
        name = self.identifier("the graph's name")
        self.expect("(")
        inputs = self.listed(lambda: self.identifier("a graph input"), ")")
        self.expect("->")
        self.expect("(")
        outputs = self.listed(lambda: self.identifier("a graph output"), ")")
        return GraphDef(name.id, tuple(inputs), tuple(outputs), self.body(), pos=name.pos)

    # body ::= "{" {assignment} "}"
    def body(self) -> tuple[Assignment, ...]:
        self.expect("{")
        found = []
        while not self.accept("}"):
            found.append(self.assignment())
        return tuple(found)

    # assignment ::= targets "=" expression ";"
    def assignment(self) -> Assignment:
        yield_to_frame()
        pos = self.pos
        target = self.targets()
        self.expect("=")
        value = self.expression()
        self.expect(";")
        return Assignment(target, value, pos=pos)

    # targets ::= target {"," target}
    def targets(self) -> Expr:
        pos = self.pos
        first = self.target()
        if self.kind != ",":
            return first
        items = [first]
        while self.accept(","):
            items.append(self.target())
        return TupleExpr(tuple(items), pos)

    # target ::= identifier | "[" targets "]" | "(" targets ")"
    def target(self) -> Expr:
        pos = self.pos
        if self.kind not in ("[", "("):
            return self.identifier("a name to assign to, or '}'")
        self.enter()
        close = "]" if self.accept("[") else ")"
        if close == ")":
            self.expect("(")
        items = tuple(self.listed(self.target, close))
        self.leave()
        if close == ")" and len(items) == 1:
            return items[0]
        return ArrayExpr(items, pos) if close == "]" else TupleExpr(items, pos)


def parse(text: str, file: str = "graph.nnef") -> Document:
    """Returns the syntax tree of the text of a ``graph.nnef``; ``file`` is its name in errors."""
    return parse_document(SourceText(text, file))


def parse_document(source: SourceText) -> Document:
    """Returns the syntax tree of a ``graph.nnef``, given as a :class:`SourceText`."""
    return Parser(source).document()


def parse_fragments(text: str, file: str) -> tuple[Fragment, ...]:
    """Returns the fragments of a text that has nothing else, such as the standard library."""
    parser = Parser(SourceText(text, file))
    found = parser.fragments()
    parser.expect("end", "a fragment")
    return found
