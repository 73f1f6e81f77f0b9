"""`python -m kbroker` is the `kbroker` command."""

from kbroker.cli.entry import main

if __name__ == "__main__":
    main()
