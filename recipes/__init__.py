"""What a user runs: ``python -m recipes.NAME``."""
