"""What an operator is: its declaration, and what it may ask for when it is lowered."""
