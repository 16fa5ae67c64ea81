"""TLS 1.3, and certificates that nobody has to issue.

end.py         as bytes in and bytes out, without sockets; who listens makes its certificate
tls_socket.py  a socket with TLS on it, as a connection uses a socket
sealed.py      an encrypted connection that looks like a plain socket, to those who know nothing of TLS
"""

from gradtide.transport.tls.end import NO_CERTIFICATE, TlsEnd, TlsListener, call_tls

__all__ = ["NO_CERTIFICATE", "TlsEnd", "TlsListener", "call_tls"]
