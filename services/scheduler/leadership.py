"""One active scheduler per model, over the fenced lease of `shared.channels.lease`.

A thread renews the lease, so that neither a long decision nor a blocking read can lose it. Who
has not renewed for a lease's length stops leading by itself; the pool's fence refuses whoever
does not notice.
"""

import logging
import secrets
import time
from threading import Event, Thread

from redis.exceptions import RedisError

from shared.channels import lease
from shared.channels.calls import Pool
from shared.keys import Keys

LOG = logging.getLogger(__name__)
STANDBY_SECONDS = 0.25
"""How often a standby looks whether the lead is free."""


class Leadership:
    """The lead of one scheduler process: taken, kept, given up."""

    def __init__(self, pool: Pool, keys: Keys) -> None:
        """`pool` is used by the renewing thread alone while leading."""
        self._pool = pool
        self._keys = keys
        self._token = secrets.token_hex(8)
        self._ended = Event()
        self._thread: Thread | None = None
        self.fence = ""
        """This leader's fence; empty for a standby."""

    @property
    def leads(self) -> bool:
        return bool(self.fence) and not self._ended.is_set()

    def try_acquire(self) -> bool:
        """Take the lead if nobody has it, and start renewing.

        Raises:
            redis.RedisError: no answer.
        """
        self._token = secrets.token_hex(8)
        fence = self._pool.run(lease.acquire(self._keys, token=self._token))
        if not fence:
            return False
        self.fence = fence
        self._ended.clear()
        self._thread = Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()
        LOG.info("leading", extra={"fence": fence})
        return True

    def stop(self, *, resign: bool) -> None:
        """Lead no longer; with `resign` the lead is free for another at once."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        fence, self.fence = self.fence, ""
        if resign and fence:
            try:
                self._pool.run(lease.resign(self._keys, fence=fence))
            except RedisError as error:
                LOG.warning("the lead could not be given up (it lapses by itself): %s", error)

    def _renew(self) -> None:
        renewed = time.monotonic()
        while not self._ended.wait(lease.RENEW_SECONDS):
            try:
                if not self._pool.run(lease.renew(self._keys, fence=self.fence)):
                    LOG.warning("the lead is lost: the lease lapsed or another took it")
                    self._ended.set()
                renewed = time.monotonic()
            except (RedisError, OSError):
                if time.monotonic() - renewed > lease.LEASE_SECONDS:
                    LOG.warning("the lead is lost: Redis did not answer for a whole lease")
                    self._ended.set()
