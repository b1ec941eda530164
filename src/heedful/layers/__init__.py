"""The parts of a transformer: equations and torch modules."""
