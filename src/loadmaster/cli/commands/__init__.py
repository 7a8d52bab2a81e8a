"""The commands, one a file: each declares its options, calls the package and prints what came of
it.

Results go to standard output, everything else to standard error. Only what every call needs is
imported at the top of a file, because ``--help`` must answer at once.
"""
