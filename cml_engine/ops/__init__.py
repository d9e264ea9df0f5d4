"""Operators of one's own: their declaration, registration, fusing rules and files.

Inside, ``declaration/`` defines how an operator is declared, and each family has a package.
"""

from typing import TYPE_CHECKING

from cml_engine.lazy import lazy_names

if TYPE_CHECKING:
    from cml_engine.compiler.passes.rules import (
        Match as Match,
        Rule as Rule,
        register_rule as register_rule,
        unregister_rule as unregister_rule,
    )
    from cml_engine.compiler.plugins import (
        API_VERSION as API_VERSION,
        load_entry_points as load_entry_points,
        load_file as load_file,
    )
    from cml_engine.ir.graph import Attrs as Attrs, Fact as Fact
    from cml_engine.ops.declaration.registry import unregister as unregister
    from cml_engine.ops.declaration.spec import (
        Case as Case,
        Cost as Cost,
        Dispatch as Dispatch,
        Kernel as Kernel,
        OpSpec as OpSpec,
        Random as Random,
        Tolerance as Tolerance,
        same_as as same_as,
    )
    from cml_engine.ops.registration import register as register
else:
    __getattr__, __dir__, __all__ = lazy_names(
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
