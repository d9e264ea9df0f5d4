"""Graph -> plan: layouts, storage, dispatches, and places in memory."""
