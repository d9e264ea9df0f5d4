"""Networks that change while a game runs: docs/see_inside.md."""
