"""Models that save and load themselves.

The classes are imported where they are used; :mod:`hyperion_lite.models.registry` knows which module defines which class.
"""
