"""The engine: rounds over a backend, in a process of its own, and the client that talks to it. Token ids only."""
