"""A base class for tests that need a free port."""

import socket
import unittest


class HeldPortTest(unittest.TestCase):
    def held_port(self):
        """Returns a port that no other process gets until the test ends, and that fsdprun can listen on."""
        holder = socket.socket()
        self.addCleanup(holder.close)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        return holder.getsockname()[1]
