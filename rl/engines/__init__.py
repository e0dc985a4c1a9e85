"""Engines: everything that holds weights, samples from them and updates them."""
