"""The compiler from a graph to a plan: passes, integer lowering, layouts and memory."""
