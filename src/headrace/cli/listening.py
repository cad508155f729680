"""What the commands that listen share: errors of addresses in words, and stopping with their parent."""

import errno
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.net.address import Address

from .console import ExitCode, Failure, bad_input


@contextmanager
def friendly_bind(address_of: Address | Callable[[OSError], Address], option: str) -> Iterator[None]:
    """Turn the errors of binding an address into words; of several, `address_of` tells which one it was."""
    try:
        yield
    except socket.gaierror as error:
        address = address_of(error) if callable(address_of) else address_of
        raise bad_input(f"{option} {address}: the host name '{address.host}' is not known here") from error
    except OSError as error:
        raise _explained(error, address_of(error) if callable(address_of) else address_of, option) from error


def _explained(error: OSError, address: Address, option: str) -> Exception:
    if error.errno == errno.EADDRINUSE:
        return Failure(f"{option} {address}: another program listens there already; stop it or choose another port")
    if error.errno == errno.EADDRNOTAVAIL:
        return bad_input(f"{option} {address}: '{address.host}' is no address of this machine")
    if error.errno == errno.EACCES and error.filename is None:
        return Failure(f"{option} {address}: this user may not listen on port {address.port}; use one above 1023")
    return error


def stop_with_stdin() -> None:
    """Have SIGTERM sent to this process once its standard input closes, so that it never outlives its parent."""

    def watch() -> None:
        try:
            while os.read(sys.stdin.fileno(), 4096):
                pass
        except OSError:
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="stdin-watch", daemon=True).start()


def survive_hangup() -> None:
    """Have SIGHUP do nothing until a server takes it: it comes before that, too, and ends a process by default."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def exit_with(code: int) -> None:
    """Leave with the code a server ended with."""
    if code:
        import typer

        raise typer.Exit(ExitCode.FAILED if code not in set(ExitCode) else code)
