"""etcd on this machine, for tests: some members on loopback, with and without TLS."""

import datetime
import ipaddress
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gradtide.store.coordinator.election.etcd_members import EtcdMembers
from gradtide.store.coordinator.election.etcd_place import parse_place

__all__ = ["EtcdHere", "needs_etcd"]

needs_etcd = pytest.mark.skipif(not shutil.which("etcd"), reason="needs etcd: apt-get install etcd-server")
_START_S = 60.0


class EtcdHere:
    def __init__(self, folder: Path, members: int = 1, *, tls: bool = False) -> None:
        self.folder, self.tls, self.processes = folder, tls, []
        folder.mkdir(parents=True, exist_ok=True)
        ports = _free_ports(2 * members)
        self.clients, peers = ports[:members], ports[members:]
        cluster = ",".join(f"m{i}=http://127.0.0.1:{port}" for i, port in enumerate(peers))
        if tls:
            make_certificates(folder)
        for i in range(members):
            self._start(i, self.clients[i], peers[i], cluster)

    def _start(self, i: int, client: int, peer: int, cluster: str) -> None:
        here, there = f"{'https' if self.tls else 'http'}://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        command = [
            "etcd", "--name", f"m{i}", "--data-dir", str(self.folder / f"m{i}"), "--logger", "zap",
            "--listen-client-urls", here, "--advertise-client-urls", here,
            "--listen-peer-urls", there, "--initial-advertise-peer-urls", there, "--initial-cluster", cluster,
        ]  # fmt: skip
        if self.tls:
            files = ("--cert-file", "server.pem", "--key-file", "server.key", "--trusted-ca-file", "ca.pem")
            command += [str(self.folder / f) if not f.startswith("--") else f for f in files] + ["--client-cert-auth"]
        with (self.folder / f"m{i}.log").open("wb") as log:
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def journal(self, job: str = "job") -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.clients)
        return f"{'etcds' if self.tls else 'etcd'}://{hosts}/{job}"

    def place(self, job: str = "job"):
        files = [str(self.folder / name) for name in ("ca.pem", "client.pem", "client.key")] if self.tls else []
        return parse_place(self.journal(job), *files)

    def wait_until_well(self) -> None:
        deadline_s, members = time.monotonic() + _START_S, EtcdMembers(self.place())
        while True:
            try:
                members.ask(lambda client: client.get("/nothing"))
                return
            except Exception:
                assert time.monotonic() < deadline_s, f"etcd did not start; see {self.folder}"

    def kill(self, i: int) -> None:
        with self.processes[i] as process:
            process.kill()

    def __enter__(self) -> "EtcdHere":
        self.wait_until_well()
        return self

    def __exit__(self, *error: object) -> None:
        for i in range(len(self.processes)):
            self.kill(i)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


def make_certificates(folder: Path) -> None:
    """A CA, and what it signed for a server and for a client."""
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = _certificate("ca", ca_key.public_key(), "ca", ca_key, authority=True)
    (folder / "ca.pem").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    for name in ("server", "client"):
        key = ec.generate_private_key(ec.SECP256R1())
        made = _certificate(name, key.public_key(), "ca", ca_key)
        (folder / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
        plain = serialization.NoEncryption()
        (folder / f"{name}.key").write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        )


def _certificate(name: str, key, issuer: str, signer, *, authority: bool = False) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    usage = x509.KeyUsage(True, False, False, False, False, authority, authority, False, False)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key).serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )  # fmt: skip
    if not authority:
        builder = builder.add_extension(both, critical=False).add_extension(here, critical=False)
    return builder.sign(signer, hashes.SHA256())
