"""Coordinator, servers and clients joined by a perfect wire, for tests of the machines with real tensors."""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from gradtide.store.client.operations import Done, Send, TellCoordinator
from gradtide.store.client.session import Session
from gradtide.store.coordinator.membership import Membership
from gradtide.store.rules.updates import TorchArithmetic
from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.wire.messages import KeySpec, decode, encode
from gradtide.store.wire.placement import block_elements


class Cluster:
    """Messages are delivered one at a time; `shuffle` draws which sender's comes next."""

    def __init__(self, servers: int, workers: int, shuffle: Random | None = None) -> None:
        self.membership = Membership()
        arithmetic = TorchArithmetic()
        self.hosts = {f"s{i}": ShardSet(f"s{i}", 1, f"s{i}", arithmetic, servers) for i in range(servers)}
        self.sessions = {f"w{i}": Session[Tensor](f"w{i}", 1, i, workers) for i in range(workers)}
        self.done: dict[tuple[str, int], Done[Tensor]] = {}
        self.shuffle = shuffle
        self._queues: dict[str, deque[Callable[[], None]]] = {}
        for name, host in self.hosts.items():
            self._words(name, host.tick(0.0))
        self.settle()
        for name, session in self.sessions.items():
            self._told(name, session.tick(0.0))
        self.settle()
        assert all(session.ready for session in self.sessions.values())

    def settle(self) -> None:
        """Deliver everything."""
        while ready := sorted(name for name, queue in self._queues.items() if queue):
            self._queues[self.shuffle.choice(ready) if self.shuffle else ready[0]].popleft()()

    def init(self, spec: KeySpec, value: Tensor, whom: str | None = None) -> None:
        for name in [whom] if whom else list(self.sessions):
            session = self.sessions[name]
            session.learn(spec)
            self._told(name, session.init(spec, self.cut(name, spec, value), 0.0)[1])
        self.settle()

    def push(self, name: str, spec: KeySpec, value: Tensor, **options: Any) -> int:
        session = self.sessions[name]
        sequence, told = session.push(session.layout((spec.key,)), self.cut(name, spec, value), now_s=0.0, **options)
        self._told(name, told)
        return sequence

    def pull(self, name: str, spec: KeySpec, rows: slice | None = None) -> Tensor:
        session = self.sessions[name]
        layout = session.layout((spec.key,), rows)
        sequence, told = session.pull(layout, now_s=0.0)
        self._told(name, told)
        self.settle()
        done = self.done[name, sequence]
        assert done.refused is None, done.refused
        pieces = [(p, v) for part in layout.parts for p, v in zip(part.pieces, done.values[part.shard], strict=True)]
        return torch.cat([value for piece, value in sorted(pieces, key=lambda pair: pair[0].block)])

    def configure(self, name: str, key: str, changes: dict[str, float], from_round: int = 0) -> Done[Tensor]:
        sequence, told = self.sessions[name].configure(key, dict(changes), from_round, 0.0)
        self._told(name, told)
        self.settle()
        return self.done[name, sequence]

    def cut(self, name: str, spec: KeySpec, value: Tensor) -> list[Tensor]:
        """The pieces of a value, in the order of its layout."""
        flat, per_block = value.reshape(-1), block_elements(value.element_size())
        return [
            flat[piece.block * per_block : piece.block * per_block + piece.count].clone()
            for piece in self.sessions[name].layout((spec.key,)).pieces
        ]

    def _send(self, source: str, action: Callable[[], None]) -> None:
        self._queues.setdefault(source, deque()).append(action)

    def _words(self, name: str, words: list[Any]) -> None:
        for word in words:
            wire = encode(word)
            self._send(name, lambda w=wire: self._tells(self.membership.hear(decode(w), 0.0)))  # type: ignore[misc]

    def _tells(self, tells: list[Any]) -> None:
        for tell in tells:
            wire = encode(tell.message)
            self._send("coordinator", lambda n=tell.name, w=wire: self._hear(n, decode(w)))  # type: ignore[misc]

    def _hear(self, name: str, message: Any) -> None:
        if name in self.hosts:
            words, answers = self.hosts[name].hear(message, 0.0)
            self._words(name, words)
            self._answers(name, answers)
        else:
            self._told(name, self.sessions[name].hear(message, 0.0))

    def _told(self, name: str, told: list[Any]) -> None:
        for instruction in told:
            match instruction:
                case Send():
                    wire = encode(instruction.message)
                    self._send(name, lambda i=instruction, w=wire: self._request(i, w))  # type: ignore[misc]
                case TellCoordinator():
                    self._words(name, [instruction.message])
                case Done():
                    self.done[name, instruction.sequence] = instruction

    def _request(self, send: Send[Tensor], wire: bytes) -> None:
        host = self.hosts[send.server.name]
        self._answers(send.server.name, host.handle(decode(wire), list(send.values)))  # type: ignore[arg-type]

    def _answers(self, name: str, answers: list[Any]) -> None:
        for answer in answers:
            wire, values = encode(answer.message), tuple(value.clone() for value in answer.values)
            self._send(name, lambda c=answer.client, w=wire, v=values: self._reply(name, c, w, v))  # type: ignore[misc]

    def _reply(self, server: str, client: str, wire: bytes, values: tuple[Tensor, ...]) -> None:
        self._told(client, self.sessions[client].receive(server, decode(wire), values, 0.0))  # type: ignore[arg-type]
