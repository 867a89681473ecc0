"""What machine this is, for logs and results."""

import platform


def cpu_name() -> str:
    """The CPU's model name; what Python knows of it where the system does not say."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
