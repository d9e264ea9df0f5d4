"""Numbers of a network that a host moves while it runs."""
