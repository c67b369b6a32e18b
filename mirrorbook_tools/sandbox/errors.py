"""What can go wrong with the sandbox itself."""

from __future__ import annotations

from mirror_core.model.errors import MirrorError


class SandboxFailed(MirrorError):
    """The sandbox could not do what was asked; its folder is left so that the next `up` can go on from it."""
