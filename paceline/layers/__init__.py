"""The blocks that models are made of, over kernels and weight formats; state only through the views in `round.py`."""
