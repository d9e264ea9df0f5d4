"""The declaration of an operator, and the services for lowering it."""
