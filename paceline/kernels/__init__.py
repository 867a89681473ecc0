"""Operations that have a plain PyTorch reference and, where a device gains from one, a faster twin of the same name."""
