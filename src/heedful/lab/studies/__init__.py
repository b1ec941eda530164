"""The studies, one a file: each defines `STUDY`."""
