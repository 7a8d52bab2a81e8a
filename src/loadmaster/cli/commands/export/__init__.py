"""The commands of ``loadmaster export``, one a file: each writes a plan in the form that another
system runs."""
