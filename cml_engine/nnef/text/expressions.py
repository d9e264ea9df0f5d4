"""Parses expressions from tokens (NNEF 1.0.5, A.2.2 compositional syntax)."""

from __future__ import annotations

from cml_engine.nnef.text.lexer import Token, TokenCursor, unquote
from cml_engine.nnef.text.syntax_tree import (
    PRIMITIVES,
    Argument,
    ArrayExpr,
    Binary,
    Call,
    Comprehension,
    Expr,
    IfElse,
    Literal,
    Loop,
    Name,
    Slicing,
    Subscript,
    TupleExpr,
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
