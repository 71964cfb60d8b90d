"""`python -m pte_cli` is `pte`."""

from pte_cli.cli.app import main

if __name__ == "__main__":
    main()
