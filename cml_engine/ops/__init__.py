"""Operators of one's own: their declaration, registration, fusing rules and files.

Inside, ``declaration/`` defines how an operator is declared, and each family has a package.
"""

from typing import TYPE_CHECKING

from cml_engine.lazy import lazy_names

if TYPE_CHECKING:
    from cml_engine.compiler.passes.rules import Match, Rule, register_rule, unregister_rule
    from cml_engine.compiler.plugins import API_VERSION, load_entry_points, load_file
    from cml_engine.ir.graph import Attrs, Fact
    from cml_engine.ops.declaration.registry import unregister
    from cml_engine.ops.declaration.spec import (
        Case,
        Cost,
        Dispatch,
        Kernel,
        OpSpec,
        Random,
        Tolerance,
        same_as,
    )
    from cml_engine.ops.registration import register
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "cml_engine.compiler.passes.rules": "Match Rule register_rule unregister_rule",
            "cml_engine.compiler.plugins": "API_VERSION load_entry_points load_file",
            "cml_engine.ir.graph": "Attrs Fact",
            "cml_engine.ops.declaration.registry": "unregister",
            "cml_engine.ops.declaration.spec": (
                "Case Cost Dispatch Kernel OpSpec Random Tolerance same_as"
            ),
            "cml_engine.ops.registration": "register",
        },
    )

__all__ = [
    "API_VERSION",
    "Attrs",
    "Case",
    "Cost",
    "Dispatch",
    "Fact",
    "Kernel",
    "Match",
    "OpSpec",
    "Random",
    "Rule",
    "Tolerance",
    "load_entry_points",
    "load_file",
    "register",
    "register_rule",
    "same_as",
    "unregister",
    "unregister_rule",
]
