"""Tests ranks on several hosts, which are network namespaces of this machine, joined by a bridge.

    python3 comm_hosts_test.py FSDP_PROCESS_TESTS

Exits with 77, which ctest reports as skipped, if namespaces are not permitted.
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
    steps = ("netns", "add", name), ("-n", name, "link", "add", "bridge", "type", "bridge")
    made = all(ip(*step).returncode == 0 for step in steps)
    ip("netns", "del", name)
    return made


class Hosts:
    """Has one namespace for each host, joined by a bridge in another namespace. `name` distinguishes networks."""

    def __init__(self, count, name=""):
        self.names = [f"fsdp{ID}{name}h{host}" for host in range(count)]
        self.switch = f"fsdp{ID}{name}s"
        for name in [self.switch, *self.names]:
            self.do("netns", "add", name)
        self.do("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        self.do("-n", self.switch, "link", "set", "bridge", "up")
        for host, name in enumerate(self.names):
            peer = ["peer", "name", f"port{host}", "netns", self.switch]
            self.do("link", "add", "wire", "netns", name, "type", "veth", *peer)
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
        """Drops all packets of the host to these TCP ports."""
        self.do("-n", self.names[host], "rule", "add", "ipproto", "tcp", "dport", ports, "blackhole")

    def bytes_sent(self, host):
        return int(ip("netns", "exec", self.names[host], "cat", "/sys/class/net/wire/statistics/tx_bytes").stdout)

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


class Job:
    """Runs a case on hosts with these numbers of ranks. `closed` is a host and the ports that it cannot reach."""

    count = 0

    def __init__(self, test, case, sizes, closed=(), **variables):
        self.test = test
        Job.count += 1
        self.hosts = Hosts(len(sizes), f"j{Job.count}")
        test.addCleanup(self.hosts.remove)
        if closed:
            self.hosts.close_ports(*closed)
        self.ranks = []
        for host, size in enumerate(sizes):
            for local_rank in range(size):
                own = {"RANK": len(self.ranks), "WORLD_SIZE": sum(sizes), "LOCAL_RANK": local_rank,
                       "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "10.78.0.1", "MASTER_PORT": 29500,
                       "NUMEL": NUMEL, "TIMEOUT_MS": 30_000} | variables
                self.ranks.append(Rank(self.hosts.names[host], case, {name: str(value) for name, value in own.items()}))
                test.addCleanup(self.ranks[-1].end)

    def wait_until_all_run(self):
        deadline = time.monotonic() + LIMIT_S
        for rank in self.ranks:
            while "running" not in rank.text():
                self.test.assertTrue(rank.process.poll() is None and time.monotonic() < deadline, rank.text())
                time.sleep(0.02)

    def kill(self, *numbers):
        for number in numbers:
            self.ranks[number].process.send_signal(signal.SIGKILL)

    def assert_ends(self, numbers, status, pattern):
        for number in numbers:
            rank = self.ranks[number]
            rank.process.wait(LIMIT_S)
            self.test.assertEqual(rank.process.returncode, status, rank.text())
            self.test.assertRegex(rank.text(), pattern)


class BetweenHosts(unittest.TestCase):
    def test_data_crosses_once(self):
        # Each host sends its ranks' slices once to every other host, and its sums once to the host that has the rows.
        # The other bytes are for meeting and connecting, fingerprints and headers.
        sizes = [2, 2]
        job = Job(self, "exchange_between_hosts", sizes)
        job.assert_ends(range(4), 0, r"hosts \D*0\D+0\D+1\D+1\D*\n")
        for host, size in enumerate(sizes):
            share = size / sum(sizes)
            data = 4 * NUMEL * (share * (len(sizes) - 1) + 1 - share)
            self.assertGreater(job.hosts.bytes_sent(host), data)
            self.assertLess(job.hosts.bytes_sent(host), 1.05 * data + 1e6)

    # The tests below wait for timeouts, so they run their jobs at the same time.

    def test_ranks_and_hosts_that_are_lost_are_named_on_every_host(self):
        rank, host, link = (Job(self, "exchange_for_ever", [2, 2], TIMEOUT_MS=timeout)
                            for timeout in (30_000, 30_000, 6000))
        for job in (rank, host, link):
            job.wait_until_all_run()
        rank.kill(1)
        host.kill(2, 3)
        link.hosts.cut_off(1)
        rank.assert_ends([0, 2, 3], 1, "rank 1 is lost")
        host.assert_ends([0, 1], 1, "rank [23] is lost|ranks 2, 3 are lost")
        link.assert_ends([0, 1], 1, "rank [23] is lost|ranks 2, 3 are lost")
        link.assert_ends([2, 3], 1, "rank 0, which hosts the rendezvous store, is lost")

    def test_hosts_that_cannot_meet_say_why(self):
        # In one job host 1 cannot reach the port of the store; in the other one it cannot reach the ports of ranks.
        interface, store, ranks = (
            Job(self, "exchange_between_hosts", [1, 1], TIMEOUT_MS=3000, **what)
            for what in ({"GLOO_SOCKET_IFNAME": "lo"}, {"closed": (1, "29500")}, {"closed": (1, "29501-65534")}))
        interface.assert_ends([0, 1], 1, "could not connect the ranks over GLOO_SOCKET_IFNAME=lo")
        store.assert_ends([0], 1, r"waited 3\.0 s for 2 ranks; missing: rank 1\.")
        store.assert_ends([1], 1, r"no connection to the rendezvous store at 10\.78\.0\.1:29500 within 3\.0 s")
        ranks.assert_ends([0, 1], 1, r"rank 1's connection failed: Gloo could not connect the ranks over 10\.78\.0\.2 "
                                     r".*reach every rank's host on any port")


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    if not is_permitted():
        print("skipped: no network namespaces here")
        sys.exit(NOT_PERMITTED)
    unittest.main()
