"""paceline serves large language models with speculative decoding and measures how to deploy them."""

__version__ = "0.1.0"
