"""`python -m gradtide` is the `gradtide` command."""

from gradtide.cli import main

if __name__ == "__main__":
    main()
