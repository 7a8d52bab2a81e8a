"""The commands, one per file: each declares its options, calls the package and prints the result.

Results go to standard output, everything else to standard error. Modules that not every call needs
are imported inside of functions, because ``--help`` must be fast.
"""
