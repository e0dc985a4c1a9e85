"""Runs a model's Python code in a separate process that is as isolated as the system allows."""
