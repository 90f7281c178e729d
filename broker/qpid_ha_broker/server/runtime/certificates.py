"""What a certificate says of its owner, as OpenSSL reads it: Python's `ssl` neither writes a subject as access control
lists have it, nor compares a name with a certificate that was accepted already.

By cffi in ABI mode, from the libcrypto that `ssl` has loaded. The declarations are those of openssl/x509.h and
openssl/x509v3.h since OpenSSL 1.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

_LIBRARIES: Final = ("libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so")
_DECLARATIONS: Final = """
    typedef struct x509 X509;
    typedef struct name X509_NAME;
    typedef struct bio BIO;
    typedef struct method BIO_METHOD;
    X509 *d2i_X509(X509 **into, const unsigned char **der, long size);
    void X509_free(X509 *certificate);
    X509_NAME *X509_get_subject_name(const X509 *certificate);
    int X509_NAME_print_ex(BIO *out, const X509_NAME *name, int indent, unsigned long flags);
    int X509_check_host(X509 *certificate, const char *name, size_t size, unsigned int flags, char **found);
    int X509_check_ip_asc(X509 *certificate, const char *address, unsigned int flags);
    const BIO_METHOD *BIO_s_mem(void);
    BIO *BIO_new(const BIO_METHOD *method);
    int BIO_read(BIO *from, void *into, int size);
    int BIO_free(BIO *bio);
"""
_RFC_2253: Final = 0x01110317
"""XN_FLAG_RFC2253: the form that Proton gives, so that rules name a subject as they always did."""
_ALWAYS_CHECK_SUBJECT: Final = 1
"""X509_CHECK_FLAG_ALWAYS_CHECK_SUBJECT: its common name, too, where there are alternative names."""
_SUBJECT_BYTES_MOST: Final = 64 * 1024


def subject_of(der: bytes) -> str:
    """The distinguished name of whom a certificate is for (RFC 2253). Raises ValueError."""
    ffi, lib = _library()
    with _certificate(der) as certificate:
        out = lib.BIO_new(lib.BIO_s_mem())
        try:
            if lib.X509_NAME_print_ex(out, lib.X509_get_subject_name(certificate), 0, _RFC_2253) < 0:
                raise ValueError("a subject that cannot be written")
            text = ffi.new("char[]", _SUBJECT_BYTES_MOST)
            size = lib.BIO_read(out, text, _SUBJECT_BYTES_MOST)
        finally:
            lib.BIO_free(out)
    return bytes(ffi.buffer(text, max(size, 0))).decode()


def is_for(der: bytes, host: str) -> bool:
    """Whether a certificate is for that host: an alternative name (RFC 6125), an address in it where `host` is one, or
    its common name, which older certificates have. Raises ValueError."""
    ffi, lib = _library()
    name = host.encode("idna" if not host.isascii() else "ascii")
    with _certificate(der) as certificate:
        is_address = lib.X509_check_ip_asc(certificate, name, 0) == 1
        return bool(
            is_address or lib.X509_check_host(certificate, name, len(name), _ALWAYS_CHECK_SUBJECT, ffi.NULL) == 1
        )


@contextmanager
def _certificate(der: bytes) -> Iterator[Any]:
    ffi, lib = _library()
    data = ffi.from_buffer("unsigned char[]", der)
    certificate = lib.d2i_X509(ffi.NULL, ffi.new("const unsigned char **", data), len(der))
    if certificate == ffi.NULL:
        raise ValueError("no certificate")
    try:
        yield certificate
    finally:
        lib.X509_free(certificate)


@cache
def _library() -> tuple[Any, Any]:
    """Raises OSError where there is none: then Python has no TLS either."""
    from cffi import FFI  # who speaks no TLS does without

    ffi = FFI()
    ffi.cdef(_DECLARATIONS)
    for name in _LIBRARIES[:-1]:
        try:
            return ffi, ffi.dlopen(name)
        except OSError:
            continue
    return ffi, ffi.dlopen(_LIBRARIES[-1])
