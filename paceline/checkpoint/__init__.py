"""Reading checkpoints: one file per format, the prepared folder that both processes share, and the download of known models."""
