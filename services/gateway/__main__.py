"""Start a gateway: settings -> logging -> server."""

import asyncio
import sys

from services.gateway.settings import GatewaySettings
from shared.errors import SettingsError
from shared.observability import logging as logs

EXAMPLES = """\
  python -m services.gateway --redis-url redis://127.0.0.1:6379/0 --model ./model --served-name demo
  ORCA_API_KEY_FILE=keys.txt python -m services.gateway --redis-url redis://redis:6379/0 \\
      --model /models/demo --served-name demo --host 0.0.0.0"""


def main() -> int:
    """Run the gateway; returns the process's exit code."""
    try:
        settings = GatewaySettings.load(
            sys.argv[1:], prog="orca gateway", description="OpenAI's HTTP for one model.", examples=EXAMPLES
        )
        logs.configure("gateway", settings.log_level)
        # Imported late: `--help` and a wrong setting answer at once.
        from services.gateway.server import serve

        try:
            import uvloop
        except ImportError:  # not on every platform; asyncio's own loop does the same, slower
            return asyncio.run(serve(settings))
        return uvloop.run(serve(settings))
    except SettingsError as error:
        sys.stderr.write(f"orca gateway: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
