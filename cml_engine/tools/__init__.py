"""Tools for people: the command line, reports, panels, and checks of single operators."""
