"""Training: the embedded model (corpus, tokenizer, target) and drafters for a frozen target (MTP, DFlash, DFlash2).

Everything here runs on PyTorch alone, on the CPU at toy size and on one GPU at full size; nothing of it is needed to serve.
Start with `embedded.py`, which has the stages of a build; `stages.py` runs them.
"""
