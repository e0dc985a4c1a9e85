"""Environments: what a model acts in, one a file."""
