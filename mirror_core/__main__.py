"""`python -m mirror_core`: our processes start each other in the same interpreter."""

from mirror_core.cli.main import main

main()
