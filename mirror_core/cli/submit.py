"""The `mirrorbook` command for `spark-submit`, with its master and settings."""

from mirror_core.cli.main import main

if __name__ == "__main__":
    main()
