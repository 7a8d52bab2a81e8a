"""``python -m loadmaster`` is the ``loadmaster`` command."""

from loadmaster.cli.start import main

if __name__ == "__main__":
    main()
