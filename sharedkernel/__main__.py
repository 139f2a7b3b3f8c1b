"""``python -m sharedkernel``: the same as the ``sharedkernel`` command."""

from sharedkernel.cli.main import main

if __name__ == "__main__":
    main()
