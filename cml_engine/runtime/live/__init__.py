"""Networks that change while a game runs: docs/live.md."""
