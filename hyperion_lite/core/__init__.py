"""What every part shares: error classes, the configuration mixin, atomic publishing, lengths and masks.

The submodules are imported where they are used; this package imports none of them, so that the error classes cost nothing.
"""
