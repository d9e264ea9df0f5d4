"""Exports operators that have no rule: NNEF's compound operators, and a game's own.

A compound operator is written as the operators that its body calls. So is a game's operator with
an expression, or with a fragment that has a body, as a function. Any other is a placeholder: a
node of its name in the domain ``game``, for which the program that runs the file needs its own
implementation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from cml_engine.compiler.passes.infer import infer_node
from cml_engine.formats.onnx.export.call import (
    ExportCall,
    ExportOperand,
    ExportRule,
    ExportTensor,
    load_export_rules,
)
from cml_engine.formats.onnx.export.wire import OutNode
from cml_engine.ir.graph import AttrValue, Graph
from cml_engine.nnef.expansion.compose import regroup
from cml_engine.nnef.expansion.evaluator import Evaluator, expand_call
from cml_engine.nnef.expansion.library import Library
from cml_engine.nnef.expansion.signatures import STDLIB, declared_signature
from cml_engine.nnef.expansion.values import TensorRef
from cml_engine.nnef.text.parser import parse_fragments
from cml_engine.ops.declaration.expression import nnef
from cml_engine.ops.declaration.registry import is_registered, registered

#: the domain of placeholders
GAME = "game"


def placeholders(graph: Graph) -> list[str]:
    """Returns the names of the operators that an export of the graph has as placeholders."""
    rules = load_export_rules()
    game_operators = sorted(op for op in graph.ops - rules.keys() if not is_compound(op))
    return [op for op in game_operators if not _declaration(op, graph.declarations)]


def export_rule(op: str, declarations: Mapping[str, str]) -> ExportRule:
    """Returns the export rule of an operator of the engine or of a game.

    ``declarations`` are the fragments of the graph's own operators by name.
    """
    engine_rule = load_export_rules().get(op)
    if engine_rule is not None:
        return engine_rule
    if is_compound(op):
        return ExportRule(write_standard_body)
    text = _declaration(op, declarations)
    convert = partial(_write_body, {**declarations, op: text}) if text else _write_placeholder
    return ExportRule(convert, function=bool(text))


def is_compound(op: str) -> bool:
    """Returns True if NNEF's standard library defines the operator by a body of other operators."""
    return op in STDLIB.fragments and STDLIB.fragments[op].body is not None


def _declaration(op: str, declarations: Mapping[str, str]) -> str:
    """Returns the fragment, with a body, of an operator; "" if there is none.

    The body follows from the operator's expression, or else it is the model's.
    """
    spec = registered().get(op)
    formula = None if spec is None else spec.formula
    if spec is not None and formula is not None and formula.term is not None:
        declared = declared_signature(spec.signature, f"<declaration of {op}>")
        body = nnef(formula.term, [param.name for param in declared.tensors])
        head = spec.signature.strip().rstrip(";")
        return f"{head} {{ {declared.results[0].name} = {body}; }}" if body else ""
    text = declarations.get(op, "" if spec is None else spec.signature)
    has_body = any(f.name == op and f.body is not None for f in parse_fragments(text, ""))
    return text if has_body else ""


def _write_body(declarations: Mapping[str, str], c: ExportCall) -> Sequence[ExportTensor]:
    """Adds the nodes of the operators that the operator's body calls."""
    op = c.node.op
    library = Library(lambda name: name != op and is_registered(name), declarations)
    facts = {f"x{i}": operand.fact for i, operand in enumerate(c.operands)}
    types = [param.type for param in library.lookup(op).signature.tensors]
    arguments = [
        [TensorRef(n, facts[n].dtype) for n in group]
        if isinstance(group, list)
        else TensorRef(group, facts[group].dtype)
        for group in regroup(c.node, types, list(facts), "inputs")
    ]
    evaluator = Evaluator(library, infer_node)
    inner = expand_call(evaluator, op, arguments, dict(c.attrs), facts, c.node.source)
    operands = dict(zip(inner.inputs, c.operands, strict=True))
    for name, array in inner.constants.items():
        # without a name: another call's constant of this name may have other values
        operands[name] = ExportOperand("", inner.facts[name], array)
    for node in inner.nodes:
        results = [inner.facts[name] for name in node.outputs]
        names = [c.new_name(name) for name in node.outputs]
        inner_call = replace(
            c,
            node=node,
            operands=[operands[name] for name in node.inputs],
            results=results,
            prefix=f"{names[0]}/",
            nodes=[],
        )
        c.nodes += inner_call.write(export_rule(node.op, declarations), names)
        for name, result_name, fact in zip(node.outputs, names, results, strict=True):
            operands[name] = ExportOperand(result_name, fact)
    return [c.use(operands[name]) for name in inner.outputs]


def write_standard_body(c: ExportCall) -> Sequence[ExportTensor]:
    """Adds the nodes of the operators that the body of an operator of NNEF or the engine calls."""
    return _write_body({}, c)


def _write_placeholder(c: ExportCall) -> Sequence[ExportTensor]:
    """Adds a node of the operator's name with its attributes."""
    attrs = {name: _flat(value) for name, value in c.attrs.items() if value is not None}
    names = tuple(c.new_name(name) for name in c.node.outputs)
    inputs = tuple(tensor.name for tensor in c.tensors)
    c.nodes.append(OutNode(c.node.op, inputs, names, attrs, GAME))
    return [ExportTensor(c, name) for name in names]


def _flat(value: AttrValue) -> AttrValue:
    """Returns an attribute as ONNX has it: the items of pairs one after another in one list."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        return value
    parts = (part if isinstance(part, list) else [part] for part in map(_flat, value))
    return [item for part in parts for item in part]
