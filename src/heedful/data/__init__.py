"""Read files into batches: readers, doctor, token stores, and the built-in corpus of dates."""
