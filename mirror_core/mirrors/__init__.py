"""What an operator does to a mirror, and sees of it: the verbs, recovery, describe, checks beforehand."""
