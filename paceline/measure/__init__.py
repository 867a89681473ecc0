"""Finds out by measurement how to deploy a model: a grid of server settings, each booted, checked, loaded and reported.

Speaks HTTP to server processes that it starts, and reads the log they write. Imports nothing of the engine.
"""
