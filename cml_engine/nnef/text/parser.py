"""Parses declarations and expressions from tokens (NNEF 1.0.5, A.2).

The grammar of each production is the comment above its method. The parser is a recursive descent
with one token of look-ahead, so its time is linear in the text.
"""

from __future__ import annotations

from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.nnef.text.lexer import SourceText, Token, TokenCursor, unquote
from cml_engine.nnef.text.syntax_tree import (
    PRIMITIVES,
    Argument,
    ArrayExpr,
    Assignment,
    Binary,
    Call,
    Comprehension,
    Document,
    Expr,
    Fragment,
    FragmentParam,
    FragmentResult,
    GraphDef,
    IfElse,
    Literal,
    Loop,
    Name,
    Slicing,
    Subscript,
    TupleExpr,
    Type,
    Unary,
)

#: The precedence of the operators, which are all left-associative.
PRECEDENCE = {
    "in": 1,
    **dict.fromkeys(("&&", "||"), 2),
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), 3),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/"), 5),
    "^": 6,
}

BUILTINS = ("length_of", "shape_of", "range_of", *PRIMITIVES)

_MAX_SUBSCRIPTS = 16
_INT64 = 2**63


class ExpressionParser(TokenCursor):
    """A parser of expressions, with a method per production of the grammar."""

    # expression ::= binary ["if" expression "else" expression]
    def expression(self) -> Expr:
        self.enter()
        pos = self.pos
        value = self.binary(1)
        if self.accept("if"):
            condition = self.expression()
            self.expect("else")
            value = IfElse(condition, value, self.expression(), pos)
        self.leave()
        return value

    # binary ::= unary {operator unary}
    def binary(self, lowest: int) -> Expr:
        left = self.unary()
        while (level := PRECEDENCE.get(self.kind, 0)) >= lowest:
            token = self.take()
            left = Binary(token.text, left, self.binary(level + 1), token.pos)
        return left

    # unary ::= ("+" | "-" | "!") unary | postfix
    def unary(self) -> Expr:
        if self.kind not in ("-", "+", "!"):
            return self.postfix()
        self.enter()
        token = self.take()
        operand = self.unary()
        self.leave()
        is_number = isinstance(operand, Literal) and operand.type in ("integer", "scalar")
        if is_number and token.text != "!":
            return _signed(token, operand)
        return Unary(token.text, operand, token.pos)

    # postfix ::= primary {"[" expression "]" | "[" [expression] ":" [expression] "]"}
    def postfix(self) -> Expr:
        value, count = self.primary(), 0
        while self.kind == "[":
            count += 1
            if count > _MAX_SUBSCRIPTS:
                raise self.unexpected(f"at most {_MAX_SUBSCRIPTS} subscripts")
            value = self.subscript(value)
        return value

    def subscript(self, value: Expr) -> Expr:
        pos = self.pos
        self.expect("[")
        begin = None if self.kind == ":" else self.expression()
        if begin is not None and self.accept("]"):
            return Subscript(value, begin, pos)
        self.expect(":", "':' or ']'")
        end = None if self.kind == "]" else self.expression()
        self.expect("]")
        return Slicing(value, begin, end, pos)

    # primary ::= literal | "true" | "false" | call | identifier | array | "(" expressions ")"
    def primary(self) -> Expr:
        kind = self.kind
        if kind == "name":
            return self.name_or_call()
        if kind in ("whole", "real", "quoted"):
            return self.literal()
        if kind in BUILTINS:
            return self.call()
        if kind in ("true", "false"):
            token = self.take()
            return Literal(kind == "true", "logical", token.pos)
        if kind == "[":
            return self.array()
        if kind == "(":
            return self.parenthesised()
        raise self.unexpected("an expression")

    # literal ::= whole | real | quoted
    def literal(self) -> Literal:
        token = self.take()
        if token.kind == "quoted":
            return Literal(unquote(token.text), "string", token.pos)
        if token.kind == "real":
            return Literal(float(token.text), "scalar", token.pos)
        value = int(token.text)
        if value >= _INT64:
            raise self.source.error("this integer does not fit in 64 bits", token.pos)
        return Literal(value, "integer", token.pos)

    # identifier | call: a call's "(" or "<type>" follows at once
    def name_or_call(self) -> Expr:
        following = self.peek(1)
        if following == "(":
            return self.call()
        if following == "<" and self.peek(2) in (*PRIMITIVES, "?") and self.peek(3) == ">":
            return self.call()
        token = self.take()
        return Name(token.text, token.pos)

    # call ::= identifier ["<" type-name ">"] "(" [argument {"," argument}] ")"
    def call(self) -> Call:
        token = self.take()
        generic = None
        if self.accept("<"):
            generic = "?" if self.accept("?") else self.type_name()
            self.close_angle()
        self.expect("(")
        arguments = self.listed(self.argument, ")")
        return Call(token.text, tuple(arguments), generic, token.pos)

    # argument ::= [identifier "="] expression
    def argument(self) -> Argument:
        if self.kind == "name" and self.peek(1) == "=":
            name = self.take().text
            self.skip()
            return Argument(name, self.expression())
        return Argument(None, self.expression())

    # array ::= "[" [expression {"," expression}] "]" | comprehension
    def array(self) -> Expr:
        pos = self.pos
        self.expect("[")
        if self.kind == "for":
            return self.comprehension(pos)
        return ArrayExpr(tuple(self.listed(self.expression, "]")), pos)

    # comprehension ::= "[" "for" loop {"," loop} ["if" expression] "yield" expression "]"
    def comprehension(self, pos: int) -> Comprehension:
        self.expect("for")
        loops = [self.loop()]
        while self.accept(","):
            loops.append(self.loop())
        condition = self.expression() if self.accept("if") else None
        self.expect("yield")
        item = self.expression()
        self.expect("]")
        return Comprehension(tuple(loops), condition, item, pos)

    # loop ::= identifier "in" binary
    def loop(self) -> Loop:
        name = self.identifier("a loop variable")
        self.expect("in")
        return Loop(name.id, self.binary(1))

    # tuple ::= "(" expression "," expression {"," expression} ")"
    def parenthesised(self) -> Expr:
        pos = self.pos
        self.expect("(")
        items = self.listed(self.expression, ")")
        if not items:
            raise self.source.error("wanted an expression between the parentheses", pos)
        return items[0] if len(items) == 1 else TupleExpr(tuple(items), pos)

    # type-name ::= "integer" | "scalar" | "logical" | "string"
    def type_name(self) -> str:
        if self.kind not in PRIMITIVES:
            raise self.unexpected("a type: integer, scalar, logical or string")
        return self.take().text


def _signed(token: Token, operand: Expr) -> Literal:
    assert isinstance(operand, Literal) and not isinstance(operand.value, str)
    value = -operand.value if token.text == "-" else operand.value
    return Literal(value, operand.type, token.pos)


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
        parsed = []
        while self.kind == "fragment":
            parsed.append(self.fragment())
        return tuple(parsed)

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
        param_type = self.type()
        default = self.expression() if self.accept("=") else None
        return FragmentParam(name.id, param_type, default, pos=name.pos)

    # result ::= identifier ":" type
    def result(self) -> FragmentResult:
        name = self.identifier("a result's name")
        self.expect(":")
        return FragmentResult(name.id, self.type())

    # type ::= (type-name | "?" | "tensor" "<" [type-name | "?"] ">" | "(" types ")") {"[" "]"}
    def type(self) -> Type:
        self.enter()
        parsed_type, dims = self.simple_type(), 0
        while self.accept("["):
            self.expect("]")
            parsed_type, dims = Type("array", items=(parsed_type,)), dims + 1
            if dims > _MAX_ARRAY_DIMS:
                raise self.unexpected(f"at most {_MAX_ARRAY_DIMS} array dimensions")
        self.leave()
        return parsed_type

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
        assignments = []
        while not self.accept("}"):
            assignments.append(self.assignment())
        return tuple(assignments)

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
    fragments = parser.fragments()
    parser.expect("end", "a fragment")
    return fragments
