"""``python -m cml_engine`` is the ``cml`` command."""

import sys

from cml_engine.cli import main

if __name__ == "__main__":
    sys.exit(main())
