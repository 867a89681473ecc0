"""Host bookkeeping of device memory: integers only, no tensors."""
