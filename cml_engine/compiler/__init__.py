"""From a graph to a plan: passes, integer lowering, layouts, memory."""
