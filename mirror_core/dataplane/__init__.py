"""Keeps copying going: the driver, its plans and epochs, where tasks run, what is counted and shown."""
