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
NUMEL = 4 << 20
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
    def __init__(self, hosts, host, case, variables):
        self.output = tempfile.TemporaryFile("w+", encoding="utf-8")
        self.process = subprocess.Popen(["ip", "netns", "exec", hosts.names[host], PROGRAM], stdout=self.output,
                                        stderr=subprocess.STDOUT,
                                        env=os.environ | variables | {"FSDP_TEST_CASE": case, "OMP_NUM_THREADS": "1"})

    def text(self):
        self.output.seek(0)
        return self.output.read()

    def wait(self):
        self.process.wait(LIMIT_S)
        return self.text()


class HostsTest(unittest.TestCase):
    def start(self, case, sizes, closed=(), of_host=None, **variables):
        """`closed`: a host and ports that it cannot reach; `of_host`: by host, variables of its ranks alone."""
        self.hosts = Hosts(len(sizes))
        self.addCleanup(self.hosts.remove)
        if closed:
            self.hosts.close_ports(*closed)
        self.ranks = []
        self.addCleanup(self.end)
        for host, size in enumerate(sizes):
            for local_rank in range(size):
                own = {"RANK": len(self.ranks), "WORLD_SIZE": sum(sizes), "LOCAL_RANK": local_rank,
                       "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "10.78.0.1", "MASTER_PORT": 29500, "BACKEND": "auto",
                       "NUMEL": NUMEL, "TIMEOUT_MS": 30_000}
                own |= variables | (of_host or {}).get(host, {})
                self.ranks.append(Rank(self.hosts, host, case, {name: str(value) for name, value in own.items()}))

    def end(self):
        for rank in self.ranks:
            rank.process.kill()
            rank.process.wait()
            rank.output.close()

    def all_end_well(self):
        return [(rank.wait(), self.assertEqual(rank.process.returncode, 0, rank.text()))[0] for rank in self.ranks]

    def wait_until_all_run(self):
        deadline = time.monotonic() + LIMIT_S
        for rank in self.ranks:
            while "running" not in rank.text():
                self.assertTrue(rank.process.poll() is None and time.monotonic() < deadline, rank.text())
                time.sleep(0.02)


class Data(HostsTest):
    def test_crosses_between_hosts_once(self):
        # What a host's ranks gather goes once to each other host, and so does what they sum for the rows there. What
        # goes beside it: how the ranks meet and connect, fingerprints, headers.
        for sizes in ([2, 2], [3, 1], [2, 2, 2], [1, 1]):
            with self.subTest(sizes=sizes):
                self.start("exchange_between_hosts", sizes)
                outputs = self.all_end_well()
                numbers = [str(host) for host, size in enumerate(sizes) for _ in range(size)]
                for output in outputs:
                    self.assertEqual(re.findall(r"\d+", output.split("hosts", 1)[1].splitlines()[0]), numbers)
                for host, size in enumerate(sizes):
                    share = size / sum(sizes)
                    data = 4 * NUMEL * (share * (len(sizes) - 1) + 1 - share)
                    self.assertLess(self.hosts.bytes_sent(host), 1.05 * data + 1e6)
                self.doCleanups()

    def test_crosses_more_often_over_gloo_alone(self):
        self.start("exchange_between_hosts", [2, 2], BACKEND="gloo")
        self.all_end_well()
        self.assertGreater(self.hosts.bytes_sent(0), 1.9 * 4 * NUMEL)


class Failures(HostsTest):
    def survivors_say(self, dead, pattern):
        for number, rank in enumerate(self.ranks):
            if number in dead:
                continue
            output = rank.wait()
            self.assertEqual(rank.process.returncode, 1, output)
            self.assertRegex(output, pattern)

    def test_a_rank_that_is_killed_is_named_on_every_host(self):
        for dead in (1, 2):
            with self.subTest(dead=dead):
                self.start("exchange_for_ever", [2, 2])
                self.wait_until_all_run()
                self.ranks[dead].process.send_signal(signal.SIGKILL)
                self.survivors_say({dead}, rf"rank {dead} (has ended|is lost)")
                self.doCleanups()

    def test_a_host_that_dies_is_named(self):
        self.start("exchange_for_ever", [2, 2])
        self.wait_until_all_run()
        for rank in self.ranks[2:]:
            rank.process.send_signal(signal.SIGKILL)
        self.survivors_say({2, 3}, r"(rank [23] (has ended|is lost)|ranks 2, 3 are lost)")

    def test_a_host_that_is_cut_off_is_named_by_the_others_and_names_the_host_of_the_store(self):
        self.start("exchange_for_ever", [2, 2], TIMEOUT_MS=4000)
        self.wait_until_all_run()
        self.hosts.cut_off(1)
        self.survivors_say({2, 3}, r"(rank [23] is lost|ranks 2, 3 are lost)")
        self.survivors_say({0, 1}, r"rank 0, which hosts the rendezvous store, is lost")

    def test_a_host_that_does_not_come_is_named(self):
        self.start("exchange_between_hosts", [2, 2], TIMEOUT_MS=4000)
        for rank in self.ranks[2:]:
            rank.process.kill()
        self.survivors_say({2, 3}, r"missing: rank 2, 3\.")

    def test_hosts_that_cannot_meet_say_why(self):
        # Sizes of the hosts, what is wrong, and by ranks that do not say it: what the others say.
        interface = "could not connect the ranks over GLOO_SOCKET_IFNAME="
        wrong = (
            ([1, 1], {"GLOO_SOCKET_IFNAME": "nosuch"}, {(): interface + "nosuch"}),
            ([1, 1], {"GLOO_SOCKET_IFNAME": "lo"}, {(): interface + "lo"}),
            # The port of the store.
            ([2, 1], {"closed": (1, "29500")},
             {(2,): r"waited 2\.0 s for 3 ranks; missing: rank 2\.",
              (0, 1): r"no connection to the rendezvous store at 10\.78\.0\.1:29500 within 2\.0 s"}),
            # Ports between ranks.
            ([1, 1], {"closed": (1, "29501-65534")},
             {(): r"rank 1's connection failed: Gloo could not connect the ranks over 10\.78\.0\.2 "
                  r".*reach every rank's host on any port"}),
            ([1, 1, 1], {"of_host": {2: {"BACKEND": "gloo"}}, "TIMEOUT_MS": 30_000},
             {(2,): r"ranks disagree: rank \d has world size 3, backend cpu; "
                    r"rank 2 has world size 3, backend gloo\. Start every rank with the same settings",
              (0, 1): r"ranks disagree: rank 2 has world size 3, backend gloo; rank 0 has "}),
            ([1, 1], {"of_host": {1: {"WORLD_SIZE": 3}}},
             {(1,): r"rank 0 has world size 2, backend cpu; rank 1 has world size 3, backend cpu",
              (0,): r"waited 2\.0 s for 3 ranks; missing: rank 2\."}))
        for sizes, what, said in wrong:
            with self.subTest(**what):
                self.start("exchange_between_hosts", sizes, **{"TIMEOUT_MS": 2000} | what)
                for silent, pattern in said.items():
                    self.survivors_say(silent, pattern)
                self.doCleanups()


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    if not is_permitted():
        print("skipped: no network namespaces here")
        sys.exit(NOT_PERMITTED)
    unittest.main()
