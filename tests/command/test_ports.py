"""Ports: free ones are found in a row, taken ones are named."""

import socket

import pytest

from services.command import ports
from shared.errors import SettingsError


def test_zero_finds_free_ports_in_a_row() -> None:
    found = list(ports.gateway_ports("127.0.0.1", 0, 3))
    assert found == list(range(found[0], found[0] + 3))
    assert found[0] > 0


def test_the_second_gateways_taken_port_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(SettingsError, match=f"port {taken}"):
            ports.gateway_ports("127.0.0.1", taken - 1, 2)


def test_an_address_of_another_machine_is_refused_with_what_to_do() -> None:
    with pytest.raises(SettingsError, match="--host"):
        ports.gateway_ports("192.0.2.1", 0, 1)


@pytest.mark.parametrize(
    ("host", "shown", "called"),
    [
        ("127.0.0.1", "http://127.0.0.1:80", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://0.0.0.0:80", "http://127.0.0.1:80"),
        ("::", "http://[::]:80", "http://[::1]:80"),
    ],
)
def test_a_wildcard_address_is_called_over_loopback(host: str, shown: str, called: str) -> None:
    assert ports.url_of(host, 80) == shown
    assert ports.local_url_of(host, 80) == called
