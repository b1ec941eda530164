"""From files to batches: sources, doctor, stores, and the built-in corpus of dates."""
