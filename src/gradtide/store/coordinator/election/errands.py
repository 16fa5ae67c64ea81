"""Questions to a register, asked by threads of their own: the coordinator's loop never waits for an answer."""

import queue
import threading
from collections.abc import Callable

from gradtide.store.coordinator.election.register import Answer, Question, Register, Write

__all__ = ["Errands"]


class Errands:
    """One thread says who leads, the other writes the journal: neither waits for the other."""

    def __init__(self, register: Register, wake: Callable[[], None]) -> None:
        self._register, self._wake = register, wake
        self._answers: queue.SimpleQueue[tuple[Question, Answer | Exception]] = queue.SimpleQueue()
        self._leading: queue.SimpleQueue[Question | None] = queue.SimpleQueue()
        self._writing: queue.SimpleQueue[Question | None] = queue.SimpleQueue()
        for name, asked in (("gradtide-leading", self._leading), ("gradtide-writing", self._writing)):
            threading.Thread(target=self._run, args=(asked,), name=name, daemon=True).start()

    def ask(self, question: Question) -> None:
        (self._writing if isinstance(question, Write) else self._leading).put(question)

    def take(self) -> list[tuple[Question, Answer]]:
        """What was answered since the last time; raises what will not mend by itself."""
        found = []
        while not self._answers.empty():
            question, answer = self._answers.get()
            if isinstance(answer, Exception):
                raise answer
            found.append((question, answer))
        return found

    def close(self) -> None:
        """Does not wait: what is under way ends within seconds."""
        self._leading.put(None)
        self._writing.put(None)

    def _run(self, asked: "queue.SimpleQueue[Question | None]") -> None:
        while (question := asked.get()) is not None:
            try:
                answer: Answer | Exception = self._register.ask(question)
            except Exception as error:  # the loop raises it
                answer = error
            self._answers.put((question, answer))
            self._wake()
