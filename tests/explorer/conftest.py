"""One laboratory server for all explorations."""

from collections.abc import Iterator

import pytest

from tests.explorer.server import Lab


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab
