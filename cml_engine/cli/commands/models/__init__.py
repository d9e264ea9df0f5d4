"""Commands that read and write models."""
