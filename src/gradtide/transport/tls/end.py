"""TLS 1.3 without sockets: bytes in, bytes out. Who the other side is, is proven inside of it: see handshake.py.

Nobody has to run an authority: who listens makes a certificate when it starts, and what both sides prove covers its
SHA-256. OpenSSL works on memory here, not on the socket. So nothing ever has to wait for the socket within it, one
recv brings many records, and when all that was received is decrypted it holds nothing that poll could not see.
"""

import datetime
import errno
import hashlib
import os
import ssl
from collections.abc import Callable

from gradtide.errors import AuthenticationError, ConfigError, FrameError

__all__ = ["NO_CERTIFICATE", "TlsEnd", "TlsListener", "call_tls"]

NO_CERTIFICATE = bytes(32)  # instead of the SHA-256, where nothing is encrypted
_RECORD_BYTES = 32 << 10  # the longest, and some more
_VALID = datetime.timedelta(days=3650)  # nobody looks: a certificate is as old as its process


class TlsEnd:
    """One end of a connection. Not for several threads at once."""

    def __init__(self, context: ssl.SSLContext, server_side: bool) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._read: Callable[[int, memoryview], int] = self._object.read  # type: ignore[assignment]
        self._write, self._written = self._object.write, self._outgoing.read
        self.finished = False  # the handshake of TLS
        self.holds = False  # whether there may be something to decrypt

    def shake(self, data: bytes) -> bytes:
        """The handshake: takes what came, says what to send."""
        self._incoming.write(data)
        self.holds = True
        try:
            if not self.finished:
                self._object.do_handshake()
                self.finished = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise AuthenticationError(f"no TLS 1.3 with it ({error.reason or 'it broke off'})") from None
        return self._outgoing.read()

    def certificate_hash(self) -> bytes:
        """Of the other side's certificate."""
        return hashlib.sha256(self._object.getpeercert(binary_form=True) or b"").digest()

    def encrypt(self, data: bytes | memoryview) -> bytes:
        self._write(data)
        return self._written()

    def feed(self, data: memoryview) -> None:
        self._incoming.write(data)
        self.holds = True

    def decrypt(self, data: bytes) -> bytes:
        """What a few bytes that came hold, with those before them."""
        room = memoryview(bytearray(len(data) + _RECORD_BYTES))
        self.feed(memoryview(data))
        return bytes(room[: self.decrypt_into(room)])

    def decrypt_into(self, target: memoryview) -> int:
        """As much as is here and fits. OpenSSL reads a record at a time, and all that is here of an incomplete one."""
        count, size, incoming = 0, target.nbytes, self._incoming
        try:
            while self.holds and count < size:
                read = self._read(size - count, target[count:] if count else target)
                if not read:
                    raise ConnectionResetError(errno.ECONNRESET, "it closed the connection")
                count += read
                self.holds = incoming.pending > 0 or (count == size and self._object.pending() > 0)
        except ssl.SSLWantReadError:
            self.holds = False
        except ssl.SSLError as error:
            why = (error.reason or "no TLS any more").lower().replace("_", " ")
            raise FrameError(f"what came was changed on the way ({why}); somebody may be in between") from None
        return count


def call_tls() -> TlsEnd:
    """The end of who dials. It takes any certificate: the proof that comes next says whether it is the right one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return TlsEnd(context, server_side=False)


class TlsListener:
    """A certificate, and the ends of those who dial."""

    def __init__(self, certificate: str = "", certificate_key: str = "") -> None:
        """From files in PEM, or made now."""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.num_tickets = 0  # a session that goes on later would have no certificate to prove anything about
        text = self._load(certificate, certificate_key) if certificate else self._load_bytes(_make_certificate())
        self.certificate_hash = hashlib.sha256(_first_certificate(text)).digest()

    def _load(self, certificate: str, certificate_key: str) -> str:
        try:
            self._context.load_cert_chain(certificate, certificate_key or None)
            with open(certificate, encoding="utf-8") as file:
                return file.read()
        except (OSError, ValueError) as error:  # one of ssl's is an OSError
            why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise ConfigError(
                f"can't use the certificate {certificate} ({why}); give it and its key in PEM: "
                "--certificate, --certificate-key"
            ) from None

    def _load_bytes(self, text: bytes) -> str:
        descriptor = os.memfd_create("gradtide-certificate", os.MFD_CLOEXEC)  # load_cert_chain only takes files
        try:
            os.write(descriptor, text)
            self._context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        return text.decode()

    def accept(self) -> TlsEnd:
        return TlsEnd(self._context, server_side=True)


def _first_certificate(text: str) -> bytes:
    begin, end = text.index(ssl.PEM_HEADER), text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)
    return ssl.PEM_cert_to_DER_cert(text[begin:end])


def _make_certificate() -> bytes:
    """A new private key and its certificate, as PEM."""
    from cryptography import x509  # 0.1 s that only who listens for other machines needs
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gradtide")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = builder.not_valid_before(now - _VALID).not_valid_after(now + _VALID).sign(key, hashes.SHA256())
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    return key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain) + made.public_bytes(pem)
