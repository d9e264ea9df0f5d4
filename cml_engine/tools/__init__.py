"""Tools for people: the command line, reports, panels, and checks of a game's own operators."""
