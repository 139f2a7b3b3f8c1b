"""The `sharedkernel` command. Each sub-command is thin; `base.py` is their common ground."""


def main() -> None:
    """Run the command line of this process, for the script that an earlier version installed: it names this function.

    Such a script stays where the distribution's old name is installed beside its new one.
    """
    from sharedkernel.cli.main import main as run

    run()
