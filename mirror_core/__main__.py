"""`python -m mirror_core` is `mirrorbook`, in exactly this interpreter: how our processes start each other."""

from mirror_core.cli.main import main

main()
