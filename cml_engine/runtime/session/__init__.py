"""Sessions, which compile a graph for one backend and run it many times, and their options."""

from cml_engine.runtime.session.compile_graph import CompileOptions, make_plan
from cml_engine.runtime.session.inputs import Words, check_inputs, random_inputs
from cml_engine.runtime.session.session import Session

__all__ = [
    "CompileOptions",
    "Session",
    "Words",
    "check_inputs",
    "make_plan",
    "random_inputs",
]
