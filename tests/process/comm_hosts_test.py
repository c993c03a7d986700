"""Ranks on several hosts: network namespaces of this machine, joined by a bridge.

    python3 comm_hosts_test.py FSDP_PROCESS_TESTS

Returns 77, for ctest a skipped test, where namespaces are not permitted.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = ""
NOT_PERMITTED = 77
LIMIT_S = 60
NUMEL = 1 << 20
ID = os.getpid() % 100_000


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)


def is_permitted():
    name = f"fsdp{ID}t"
    made = ip("netns", "add", name).returncode == 0 and ip("-n", name, "link", "add", "bridge", "type", "bridge").returncode == 0
    ip("netns", "del", name)
    return made


class Hosts:
    """One namespace for each host, all on one bridge, which has a namespace too. `name`: of one among several."""

    def __init__(self, count, name=""):
        self.names = [f"fsdp{ID}{name}h{host}" for host in range(count)]
        self.switch = f"fsdp{ID}{name}s"
        for name in [self.switch, *self.names]:
            self.do("netns", "add", name)
        self.do("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        self.do("-n", self.switch, "link", "set", "bridge", "up")
        for host, name in enumerate(self.names):
            self.do("link", "add", "wire", "netns", name, "type", "veth", "peer", "name", f"port{host}", "netns", self.switch)
            self.do("-n", self.switch, "link", "set", f"port{host}", "master", "bridge", "up")
            self.do("-n", name, "addr", "add", f"10.78.0.{host + 1}/24", "dev", "wire")
            for device in ("wire", "lo"):
                self.do("-n", name, "link", "set", device, "up")

    @staticmethod
    def do(*arguments):
        done = ip(*arguments)
        if done.returncode != 0:
            raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr}")

    def cut_off(self, host):
        self.do("-n", self.switch, "link", "set", f"port{host}", "down")

    def close_ports(self, host, ports):
        """Nothing that the host sends to these ports of TCP arrives."""
        self.do("-n", self.names[host], "rule", "add", "ipproto", "tcp", "dport", ports, "blackhole")

    def bytes_sent(self, host):
        line = subprocess.run(["ip", "netns", "exec", self.names[host], "cat", "/sys/class/net/wire/statistics/tx_bytes"],
                              capture_output=True, text=True, check=True)
        return int(line.stdout)

    def remove(self):
        for name in [self.switch, *self.names]:
            ip("netns", "del", name)


class Rank:
    def __init__(self, host, case, variables):
        self.output = tempfile.TemporaryFile("w+", encoding="utf-8")
        self.process = subprocess.Popen(["ip", "netns", "exec", host, PROGRAM], stdout=self.output,
                                        stderr=subprocess.STDOUT,
                                        env=os.environ | variables | {"FSDP_TEST_CASE": case, "OMP_NUM_THREADS": "1"})

    def text(self):
        self.output.seek(0)
        return self.output.read()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.output.close()


class RanksOfHosts(unittest.TestCase):
    def start(self, case, sizes, closed=(), **variables):
        """`closed`: a host and ports that it cannot reach."""
        self.hosts = Hosts(len(sizes))
        self.addCleanup(self.hosts.remove)
        if closed:
            self.hosts.close_ports(*closed)
        self.ranks = []
        for host, size in enumerate(sizes):
            for local_rank in range(size):
                own = {"RANK": len(self.ranks), "WORLD_SIZE": sum(sizes), "LOCAL_RANK": local_rank,
                       "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "10.78.0.1", "MASTER_PORT": 29500,
                       "NUMEL": NUMEL, "TIMEOUT_MS": 30_000} | variables
                self.ranks.append(Rank(self.hosts.names[host], case, {name: str(value) for name, value in own.items()}))
                self.addCleanup(self.ranks[-1].end)

    def assert_ends(self, number, status, pattern):
        process = self.ranks[number].process
        process.wait(LIMIT_S)
        output = self.ranks[number].text()
        self.assertEqual(process.returncode, status, output)
        self.assertRegex(output, pattern)

    def survivors_say(self, dead, pattern):
        for number in set(range(len(self.ranks))) - set(dead):
            self.assert_ends(number, 1, pattern)

    def start_for_ever(self, sizes, **variables):
        self.start("exchange_for_ever", sizes, **variables)
        deadline = time.monotonic() + LIMIT_S
        for rank in self.ranks:
            while "running" not in rank.text():
                self.assertTrue(rank.process.poll() is None and time.monotonic() < deadline, rank.text())
                time.sleep(0.02)


class Data(RanksOfHosts):
    def test_crosses_between_hosts_once(self):
        # What a host's ranks gather goes once to each other host, and so does what they sum for the rows there. What
        # goes beside it: how the ranks meet and connect, fingerprints, headers.
        sizes = [2, 1, 1]
        self.start("exchange_between_hosts", sizes)
        numbers = [host for host, size in enumerate(sizes) for _ in range(size)]
        for rank in range(sum(sizes)):
            self.assert_ends(rank, 0, r"hosts \D*" + r"\D+".join(map(str, numbers)) + r"\D*\n")
        for host, size in enumerate(sizes):
            share = size / sum(sizes)
            data = 4 * NUMEL * (share * (len(sizes) - 1) + 1 - share)
            self.assertGreater(self.hosts.bytes_sent(host), data)
            self.assertLess(self.hosts.bytes_sent(host), 1.05 * data + 1e6)


class Failures(RanksOfHosts):
    def test_ranks_that_are_killed_are_named_on_every_host(self):
        for sizes, dead, said in (([2, 1], [1], "rank 1 (has ended|is lost)"),
                                  ([1, 2], [1, 2], "rank [12] (has ended|is lost)|ranks 1, 2 are lost")):
            with self.subTest(sizes):
                self.start_for_ever(sizes)
                for rank in dead:
                    self.ranks[rank].process.send_signal(signal.SIGKILL)
                self.survivors_say(dead, said)
                self.doCleanups()

    def test_a_host_that_is_cut_off_is_named_by_the_others_and_names_the_host_of_the_store(self):
        self.start_for_ever([1, 2], TIMEOUT_MS=4000)
        self.hosts.cut_off(1)
        self.survivors_say({1, 2}, "rank [12] is lost|ranks 1, 2 are lost")
        self.survivors_say({0}, "rank 0, which hosts the rendezvous store, is lost")

    def test_hosts_that_cannot_meet_say_why(self):
        wrong = (
            ({"GLOO_SOCKET_IFNAME": "lo"}, ["could not connect the ranks over GLOO_SOCKET_IFNAME=lo"] * 2),
            # The port of the store.
            ({"closed": (1, "29500")},
             [r"waited 2\.0 s for 2 ranks; missing: rank 1\.",
              r"no connection to the rendezvous store at 10\.78\.0\.1:29500 within 2\.0 s"]),
            # Ports between ranks.
            ({"closed": (1, "29501-65534")},
             [r"rank 1's connection failed: Gloo could not connect the ranks over 10\.78\.0\.2 "
              r".*reach every rank's host on any port"] * 2))
        for what, said in wrong:
            with self.subTest(**what):
                self.start("exchange_between_hosts", [1, 1], **{"TIMEOUT_MS": 2000} | what)
                for rank, pattern in enumerate(said):
                    self.assert_ends(rank, 1, pattern)
                self.doCleanups()


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    if not is_permitted():
        print("skipped: no network namespaces here")
        sys.exit(NOT_PERMITTED)
    unittest.main()
