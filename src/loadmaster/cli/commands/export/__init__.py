"""The commands of ``loadmaster export``, one per file: each writes a plan in the format of another
system."""
