"""Sampling with one noise for all: the token at an index is a function of the prefix and the seed alone."""
