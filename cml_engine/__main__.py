"""``python -m cml_engine`` is ``cml``."""

import sys

from cml_engine.tools.cli import main

sys.exit(main())
