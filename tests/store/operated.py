"""A store as an operator starts it, role by role; each runs in a thread of the test."""

import contextlib
import threading

from gradtide.store.local.roles import Role, make_process
from gradtide.transport.keys import Credentials


class Operated:
    """`with Operated(folder) as store: store.coordinator(); store.server("s0", replicas=1)`."""

    def __init__(self, folder, lease_s=0.5):
        self.folder, self.lease_s, self.address = folder, lease_s, f"unix:{folder}/c"
        self.running, self.errors = {}, {}

    def coordinator(self, journal="journal", **options):
        (self.folder / "c").unlink(missing_ok=True)
        path = str(self.folder / journal) if journal else ""
        self._run(Role(role="coordinator", name="coordinator", address=self.address, lease_s=self.lease_s,
                       journal=path, **options))  # fmt: skip

    def server(self, name, place=None, **options):
        where = f"unix:{self.folder}/{place or name}"
        (self.folder / (place or name)).unlink(missing_ok=True)
        options.setdefault("coordinator", self.address)
        self._run(Role(role="server", name=name, address=where, **options), place)

    def _run(self, role, key=None):
        key = key or role.name
        process = make_process(role, Credentials(name=role.name))

        def run():
            try:
                process.run()
            except Exception as error:
                self.errors[key] = error

        thread = threading.Thread(target=run)
        thread.start()
        self.running[key] = (process, thread)

    def stop(self, key):
        process, thread = self.running.pop(key)
        process.stop()
        thread.join(20)
        assert not thread.is_alive()

    def wait_for(self, key):
        """Until it ends by itself; its error."""
        _, thread = self.running.pop(key)
        thread.join(20)
        assert not thread.is_alive()
        return self.errors.pop(key, None)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for key in list(self.running):
            with contextlib.suppress(AssertionError):
                self.stop(key)
