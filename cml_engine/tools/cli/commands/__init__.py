"""The commands of ``cml``, one module each.

A module has a docstring (its help text: one line that says what for), ``GROUP`` (one of
:data:`GROUPS`), ``EXAMPLE`` (a command line that runs), ``options(parser)`` and ``run(a)``.
"""

#: the groups of ``cml --help``, in its order
GROUPS = (
    "Run and check",
    "Look at a model",
    "Fit it into frames",
    "Change it",
    "Ship it",
    "This installation",
)
