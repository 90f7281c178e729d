"""The files of the web page: read once, and no others are ever looked for, whatever a request names."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

DIRECTORY: Final = Path(__file__).parent / "page"
PREFIX: Final = "/page/"
_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""The page loads what this broker serves and asks it alone; no text in it can become a script."""
PAGE_HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class PageFile(NamedTuple):
    """One file, as it is sent."""

    content: bytes
    content_type: str


def read_page_files() -> dict[str, PageFile]:
    """By path of a request. Raises OSError."""
    page_files = {
        PREFIX + path.name: PageFile(path.read_bytes(), _TYPES[path.suffix])
        for path in sorted(DIRECTORY.iterdir())
        if path.suffix in _TYPES
    }
    return {"/": page_files.pop(PREFIX + "index.html"), **page_files}
