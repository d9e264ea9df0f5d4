"""Plans a frame from numbers alone: budgets, cost predictions, policies, and the plan."""
