"""The parts of a transformer, each readable on its own."""
