"""Test doubles that obey the real protocols, for the tests of every package."""
