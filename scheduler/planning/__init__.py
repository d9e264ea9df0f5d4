"""What a frame runs, decided on numbers alone: budgets, costs, whose turn it is, and the plan."""
