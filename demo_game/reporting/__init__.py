"""What the game knows of its own frames, and what it tells of them."""
