"""Access rights: which of them Mirrorbook needs, gives, withdraws and denies. Pure."""
