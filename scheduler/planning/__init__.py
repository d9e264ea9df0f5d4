"""The decision about a frame, on numbers alone: budgets, costs, policies, and the plan."""
