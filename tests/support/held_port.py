"""A test that needs a port of its own."""

import socket
import unittest


class HeldPortTest(unittest.TestCase):
    def held_port(self):
        """A port that nobody else is given until the test ends, and that fsdprun can listen on."""
        holder = socket.socket()
        self.addCleanup(holder.close)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        return holder.getsockname()[1]
