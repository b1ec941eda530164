"""What models that read, rather than write, have to say of a text."""
