"""A listener on an engine's cache events: what it stored and removed, in order."""

from __future__ import annotations

import threading

import msgspec
import zmq
from processes import PATIENCE_S, Engine, until


class Listener:
    """Follows one engine from when it is made."""

    def __init__(self, engine: Engine) -> None:
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt_string(zmq.SUBSCRIBE, "kv")
        # What is published before somebody listens is nobody's.
        connected = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._socket.connect(f"tcp://127.0.0.1:{engine.events}")
        assert connected.poll(1000 * PATIENCE_S), f"{engine.name} does not publish its cache events"
        self._socket.disable_monitor()
        self.stored: list[tuple[str | None, list[int]]] = []
        self.removed: list[int] = []
        self.cleared = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._stop.is_set():
            if not self._socket.poll(100):
                continue
            _, _, payload = self._socket.recv_multipart()
            for event in msgspec.msgpack.decode(payload)[1]:
                if event["type"] == "BlockStored":
                    self.stored.append((event.get("session_id"), event["block_hashes"]))
                elif event["type"] == "BlockRemoved":
                    self.removed.extend(event["block_hashes"])
                else:
                    self.cleared += 1

    def of(self, session: str) -> list[int]:
        """The blocks that were stored for a session, in order."""
        return [value for name, hashes in self.stored if name == session for value in hashes]

    def has_stored(self, session: str, count: int) -> list[int]:
        """Waits until so many blocks were stored for a session."""
        return until(f"{count} blocks of {session}", lambda: len(self.of(session)) >= count and self.of(session))

    def close(self) -> None:
        self._stop.set()
        self._thread.join(2)
        self._socket.close(0)
