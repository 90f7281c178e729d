"""How long tests wait for what has to come."""

from typing import Final

LIMIT_S: Final = 90.0
"""Only a broken promise takes so long, on a slow and busy machine as well. It costs nothing when all is well."""
