"""Tests, in the shape of the package; `kit/` holds the doubles that they share."""
