"""Plain data and protocols that every other package may import; standard library (and msgspec) only."""
