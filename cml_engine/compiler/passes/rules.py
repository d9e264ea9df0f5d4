"""Rewrites graphs by rules: a rule matches a chain of operators and replaces the last one.

The engine's own rules are lists in the neighbouring passes. A game adds a rule with
:func:`register_rule` (docs/custom_operators.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from cml_engine.compiler.passes.cleanup import eliminate_dead_code
from cml_engine.compiler.passes.infer import infer_node
from cml_engine.errors import OperatorError
from cml_engine.errors.arguments import check_instance
from cml_engine.ir.block_weights import copy_of
from cml_engine.ir.graph import (
    DTYPE_OF_KIND,
    NUMPY_DTYPE,
    Array,
    Attrs,
    Fact,
    Graph,
    Node,
    fact_from,
    is_whole,
    unused_name,
)
from cml_engine.ops.declaration.game_functions import calling
from cml_engine.ops.declaration.registry import is_builtin

#: stops rules whose replacements match a rule again and again
_MAX_SWEEPS = 32


@dataclass
class Match:
    """An occurrence of a rule's pattern in ``graph``: its ``nodes`` in execution order.

    ``position`` is the index of the last node's operand that the node before it computes.
    ``added`` has the constants of :meth:`add_constant`.

    Examples
    --------
    >>> def replace(match):  # exp(x) of a constant is computed once
    ...     return "zero" if match.constant(match.first.inputs[0]) is not None else None
    """

    graph: Graph
    nodes: tuple[Node, ...]
    position: int = 0
    added: dict[str, Array] = field(default_factory=dict)

    @property
    def first(self) -> Node:
        return self.nodes[0]

    @property
    def last(self) -> Node:
        return self.nodes[-1]

    def fact(self, name: str) -> Fact:
        """Returns the type and shape of a tensor of the graph."""
        return self.graph.facts[name]

    def constant(self, name: str) -> Array | None:
        """Returns the value of a constant of the graph or of :meth:`add_constant`; None if the
        tensor is computed or updated."""
        return self.added[name] if name in self.added else self.graph.constant(name)

    def add_constant(self, suffix: str, value: Array) -> str:
        """Adds a constant for the replacement and returns its name.

        Floats become a ``scalar`` tensor of the array's shape, integers an ``integer`` tensor,
        and booleans a ``logical`` tensor.
        """
        name = unused_name(f"{self.last.outputs[0]}.{suffix}", self.graph.facts, self.added)
        self.added[name] = _tensor(name, np.asanyarray(value))
        return name

    def node(self, op: str, inputs: Sequence[str], attrs: Attrs) -> Node:
        """Returns a node that computes the result of the pattern's last node with another operator
        and inputs.

        The replacement of a rule is such a node; nothing is added to the graph yet.
        """
        return replace(self.last, op=op, inputs=tuple(inputs), attrs=attrs)


@dataclass(frozen=True)
class Rule:
    """A rewriting rule: a chain of operators, and the function that replaces its last one.

    Parameters
    ----------
    name : for messages.
    pattern : operators in execution order, each reading the result of the one before as its first
        operand; the last one as one of ``operands``.
    replace : ``replace(match)`` returns a node (:meth:`Match.node`) with the last one's results,
        the name of an existing tensor with that result, or None if the rule does not apply.
    operands : the operands of the last operator that may be the result of the one before.
    shared : allows other readers of the results inside the pattern, or that they are outputs. They
        are still computed for those, so set it only if the replacement does not repeat their work.

    Examples
    --------
    >>> rule = cml.ops.Rule("relu twice", ("relu", "relu"), lambda match: match.first.outputs[0])
    """

    name: str
    pattern: tuple[str, ...]
    replace: Callable[[Match], Node | str | None]
    operands: tuple[int, ...] = (0,)
    shared: bool = False


_REGISTERED: list[Rule] = []


def register_rule(rule: Rule) -> Rule:
    """Adds a rule that every session applies; the last one registered is tried first.

    Examples
    --------
    >>> rule = cml.ops.Rule("negate twice", ("neg", "neg"), lambda match: match.first.inputs[0])
    >>> rule = cml.ops.register_rule(rule)
    """
    _check_rule(rule)
    _REGISTERED.insert(0, rule)
    return rule


def _check_rule(rule: object) -> None:
    if not isinstance(rule, Rule):
        raise OperatorError(f"register_rule wants a Rule, got {type(rule).__name__}")
    names: object = rule.pattern
    operands: object = rule.operands
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise OperatorError(
            f"rule '{rule.name}': its pattern is {names!r}; wanted a tuple of operators' names"
        )
    if not names:
        raise OperatorError(f"rule '{rule.name}' has an empty pattern; name at least one operator")
    if not isinstance(operands, tuple) or not all(is_whole(n) and n >= 0 for n in operands):
        raise OperatorError(
            f"rule '{rule.name}': its operands are {operands!r}; wanted a tuple of their numbers"
        )
    if not callable(rule.replace):
        raise OperatorError(f"rule '{rule.name}': replace must be a function, got {rule.replace!r}")


def unregister_rule(rule: Rule) -> None:
    """Removes a rule that :func:`register_rule` added.

    Raises :class:`OperatorError` if it is not registered.

    Examples
    --------
    >>> rule = cml.ops.Rule("negate twice", ("neg", "neg"), lambda match: match.first.inputs[0])
    >>> rule = cml.ops.register_rule(rule)
    >>> cml.ops.unregister_rule(rule)
    """
    if check_instance(Rule, rule, "rule") not in _REGISTERED:
        raise OperatorError(f"rule '{rule.name}' is not registered: register_rule(rule) adds one")
    _REGISTERED.remove(rule)


def registered_rules() -> tuple[Rule, ...]:
    """Returns the rules that games registered, in the order in which they are tried: the newest
    first."""
    return tuple(_REGISTERED)


def apply_registered(graph: Graph) -> Graph:
    """Returns the graph rewritten by the rules that games registered, until none applies."""
    return rewrite(graph, tuple(_REGISTERED))


def rewrite_custom(graph: Graph, rules: Sequence[Rule]) -> Graph:
    """Returns the graph rewritten by rules of the engine, which apply to the engine's own operators
    only.

    A rule is left out if a game replaced an operator of its pattern.
    """
    return rewrite(graph, [_custom_rule(rule) for rule in rules if is_builtin(*rule.pattern)])


def _custom_rule(rule: Rule) -> Rule:
    def replaced(match: Match) -> Node | str | None:
        new = rule.replace(match)
        return new if not isinstance(new, Node) or is_builtin(new.op) else None

    return replace(rule, replace=replaced)


def rewrite(graph: Graph, rules: Sequence[Rule]) -> Graph:
    """Returns the graph rewritten by the rules until none applies, at most ``_MAX_SWEEPS``
    times, without dead code."""
    for _ in range(_MAX_SWEEPS if rules else 0):
        sweep = _Sweep(graph, rules)
        if not sweep.run():
            return graph
        graph = eliminate_dead_code(sweep.result())
    return graph


class _Sweep:
    """One application of rules to the nodes of a graph, in execution order.

    :meth:`run` applies them, and ``result`` returns the new graph.
    """

    def __init__(self, graph: Graph, rules: Iterable[Rule]) -> None:
        self._graph = graph
        self._rules: dict[str, list[Rule]] = {}
        for rule in rules:
            self._rules.setdefault(rule.pattern[-1], []).append(rule)
        self._roots = set(graph.roots)
        self._producers: dict[str, Node] = {}
        self._constants: dict[str, Array] = {}
        self._renamed: dict[str, str] = {}
        self._nodes: list[Node] = []
        #: results of the nodes that this sweep has not visited yet
        self._to_come = {name for node in graph.nodes for name in node.outputs}
        # counts never decrease during a sweep, so a count of 1 is reliable
        self._uses = Counter(n for node in graph.nodes for n in set(node.reads))

    def run(self) -> bool:
        """Applies the rules to every node once; returns True if anything changed."""
        changed = False
        for original in self._graph.nodes:
            node = self._with_new_names(original)
            replacement = self._replacement(node)
            changed |= replacement is not None
            self._to_come.difference_update(node.outputs)
            if isinstance(replacement, str):
                self._renamed[node.outputs[0]] = replacement
                continue
            if replacement is not None:
                self._uses.update(set(replacement.reads))
            self._nodes.append(replacement or node)
            if len(node.outputs) == 1:
                self._producers[node.outputs[0]] = replacement or node
        return changed

    def result(self) -> Graph:
        facts = _facts_of(self._constants)
        return self._graph.with_(
            nodes=tuple(self._nodes),
            facts={**self._graph.facts, **facts},
            constants={**self._graph.constants, **self._constants},
        )

    def _with_new_names(self, node: Node) -> Node:
        if not any(name in self._renamed for name in node.inputs):
            return node
        inputs = tuple(self._renamed.get(name, name) for name in node.inputs)
        self._uses.update(set(inputs))
        return replace(node, inputs=inputs)

    def _replacement(self, node: Node) -> Node | str | None:
        if len(node.outputs) != 1 or node.epilogues:
            return None
        for rule in self._rules.get(node.op, ()):
            for position in rule.operands if len(rule.pattern) > 1 else (0,):
                replacement = self._apply(rule, node, position)
                if replacement is not None:
                    return replacement
        return None

    def _apply(self, rule: Rule, node: Node, position: int) -> Node | str | None:
        nodes = self._match(rule, node, position)
        if nodes is None:
            return None
        graph = self.result().with_(nodes=self._graph.nodes) if self._constants else self._graph
        match = Match(graph, nodes, position)
        replacement = _replace(rule, match)
        if replacement is None or (isinstance(replacement, str) and node.outputs[0] in self._roots):
            return None
        self._check(rule, match, replacement)
        self._constants |= match.added
        if isinstance(replacement, str):
            return self._renamed.get(replacement, replacement)
        return replacement

    def _match(self, rule: Rule, node: Node, position: int) -> tuple[Node, ...] | None:
        nodes = [node]
        for op in reversed(rule.pattern[:-1]):
            if position >= len(nodes[0].inputs):
                return None
            name = nodes[0].inputs[position]
            producer = self._producers.get(name)
            has_one_reader = self._uses[name] == 1 and name not in self._roots
            if producer is None or producer.op != op or producer.epilogues:
                return None
            if not (has_one_reader or rule.shared):
                return None
            nodes.insert(0, producer)
            position = 0
        return tuple(nodes)

    def _check(self, rule: Rule, match: Match, replacement: Node | str) -> None:
        """Raises :class:`OperatorError` if ``replacement``, a rule's replacement, is invalid.

        It is invalid if it changes the type or shape of the result, or reads tensors that are
        not computed yet.
        """
        expected = match.fact(match.last.outputs[0])
        facts = {**match.graph.facts, **_facts_of(match.added)}
        reads = (replacement,) if isinstance(replacement, str) else replacement.reads
        if unknown := [n for n in reads if n not in facts or n in self._to_come]:
            raise _rule_error(
                rule, match, f"its replacement reads '{unknown[0]}', which is not there yet"
            )
        if isinstance(replacement, str):
            actual, outputs = facts[replacement], match.last.outputs
        else:
            actual, outputs = infer_node(replacement, facts)[0], replacement.outputs
        if actual != expected or outputs != match.last.outputs:
            raise _rule_error(
                rule,
                match,
                f"its replacement gives {actual}, wanted {expected} as '{match.last.outputs[0]}'",
            )


def _replace(rule: Rule, match: Match) -> Node | str | None:
    """Calls the rule's function, which may be a game's, and returns its replacement or None.

    Raises :class:`OperatorError` if the function fails or returns neither a node, a tensor's
    name nor None.
    """
    with calling(True, "replace", partial(_rule_error, rule, match)):
        replacement = rule.replace(match)
    if replacement is not None and not isinstance(replacement, Node | str):
        raise _rule_error(
            rule, match, f"it gives {replacement!r}, wanted a node or a tensor's name"
        )
    return replacement


def _rule_error(rule: Rule, match: Match, problem: str) -> OperatorError:
    return OperatorError(
        f"rule '{rule.name}' at {match.last.title}: {problem}; make it return None where it does "
        "not fit",
        match.last.source,
    )


def _tensor(name: str, value: Array) -> Array:
    """Returns a copy of an array in float32, int32 or bool, the types of tensors.

    ``name`` is for messages. Raises :class:`OperatorError` if a value does not fit.
    """
    dtype = DTYPE_OF_KIND.get(value.dtype.kind)
    if dtype is None:
        raise OperatorError(f"constant '{name}': wanted numbers or truth values, got {value.dtype}")
    with np.errstate(over="ignore"):
        array = copy_of(value, NUMPY_DTYPE[dtype])
    is_lost = np.isinf(array) & ~np.isinf(value) if dtype == "scalar" else array != value
    if is_lost.any():
        raise OperatorError(f"constant '{name}': a value does not fit into {array.dtype}")
    return array


def _facts_of(constants: Mapping[str, Array]) -> dict[str, Fact]:
    return {name: fact_from(value) for name, value in constants.items()}
