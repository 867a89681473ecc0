"""Policy: who runs, and what the next step computes. No device, no messages, no clock."""
