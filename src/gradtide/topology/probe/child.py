"""One process of a probe: sends or receives on order. Run as a file, with the standard library alone."""

import json
import signal
import socket
import sys
import time


def main(setup: str) -> None:
    wiring = json.loads(setup)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; its socket then closes
    peers = {int(peer): socket.socket(fileno=fd) for peer, fd in wiring["peers"].items()}
    for peer in peers.values():
        peer.settimeout(wiring["wait_s"])
    with socket.socket(fileno=wiring["orders"]) as orders:
        orders.sendall(b"[]\n")  # ready
        with orders.makefile("rb") as lines:
            for line in lines:  # ends when the parent closes, or dies
                order = json.loads(line)
                act = send if order["do"] == "send" else receive
                seconds = act(peers[order["peer"]], order["size"], order["times"])
                orders.sendall(json.dumps(seconds).encode() + b"\n")


def send(peer: socket.socket, size: int, times: int) -> list[float]:
    """Seconds until each message is answered."""
    message = memoryview(bytearray(size))
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        peer.sendall(message)
        if not peer.recv(1):
            sys.exit(1)
        seconds.append(time.perf_counter() - start)
    return seconds


def receive(peer: socket.socket, size: int, times: int) -> list[float]:
    """Answers each message with one byte."""
    buffer = memoryview(bytearray(size))
    for _ in range(times):
        there = 0
        while there < size:
            read = peer.recv_into(buffer[there:])
            if not read:
                sys.exit(1)
            there += read
        peer.sendall(b"\0")
    return []


if __name__ == "__main__":
    main(sys.argv[1])
