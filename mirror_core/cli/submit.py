"""What `spark-submit` is given: the command `mirrorbook`, on the master and with the settings of spark-submit."""

from mirror_core.cli.main import main

if __name__ == "__main__":
    main()
