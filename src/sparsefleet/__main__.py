"""`python -m sparsefleet` is the command `sparsefleet`."""

from sparsefleet.cli import main

if __name__ == "__main__":
    main()
