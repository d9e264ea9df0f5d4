"""The demo game. It uses the public names of ``cml_engine`` and ``scheduler`` only."""
