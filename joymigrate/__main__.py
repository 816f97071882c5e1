"""`python -m joymigrate`."""

from joymigrate.cli import main

if __name__ == "__main__":
    main()
