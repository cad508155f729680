"""Ports that are held for whoever is to listen on them."""

import socket

import pytest

from headrace.net.ports import HeldPort, free_ports
from headrace.net.tcp import TcpNetwork


def test_a_held_port_is_listened_on_again_and_again_and_refuses_between() -> None:
    with HeldPort() as port:
        for _ in range(3):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port.number))
            acceptor = TcpNetwork().listen("127.0.0.1", port.number)
            socket.create_connection(("127.0.0.1", port.number)).close()
            acceptor.close()


def test_a_held_port_is_nobody_elses_until_it_is_released() -> None:
    port = HeldPort()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port.number))
    port.release()
    port.release()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port.number))


def test_free_ports_are_different_and_stay_held() -> None:
    ports = free_ports(3)
    assert len(set(ports)) == 3
    for port in ports:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
