"""One file per thing that can be trained: a frozen settings dataclass and a function that trains it within its budget."""
