"""What people use: the command line, reports, panels, checks of a game's own operators."""
