"""Plans an optimized graph: layouts, storage, dispatches and places in memory."""
