"""Tests of fsdprun --doctor: it compares and measures hosts, and the variables that it explains reach the ranks."""

import json
import os
import shutil
import subprocess
import sys
import unittest

from fsdprun_case import FsdprunTest

# The script calls the ioctl SIOCETHTOOL with ETHTOOL_STSO, as `ethtool -K eth0 tso off` does.
TURN_TSO_OFF = """
import array, fcntl, socket, struct, sys
value = array.array("I", [0x1F, 0])
request = struct.pack("16sP16x", sys.argv[1].encode(), value.buffer_info()[0])
fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8946, request)
"""


class Doctor(FsdprunTest):
    def both_nodes(self, prefixes, *flags):
        """Returns the output of two nodes that compare themselves. Some fact must differ."""
        nodes = [self.start("--nnodes=2", f"--node-rank={node}", "--doctor", *flags, prefix=prefix)
                 for node, prefix in enumerate(prefixes)]
        self.end(*nodes)
        self.assertEqual([node.returncode for node in nodes], [1, 0], nodes[0].err + nodes[1].err)
        return [node.out for node in nodes]

    def test_one_host_is_shown_and_measured(self):
        result = self.run_ranks("--doctor")
        self.assertEqual(result.returncode, 0, result.err)
        for fact in ("LibTorch", "CUDA runtime", "NCCL", "driver", "GPUs", "/dev/shm", "memory of the control group",
                     "ulimit -l", "ulimit -n", "ulimit -v", "interfaces"):
            self.assertIn("\n" + fact, result.out)
        self.assertRegex(result.out, r"\ninside host 0 +2 +\d+\.\d us +\d+\.\d MB/s\n")

    def test_the_odd_host_is_named(self):
        limited = [["bash", "-c", f"ulimit -n {limit}; exec \"$@\"", "bash"] for limit in (1000, 900)]
        first, second = self.both_nodes(limited, f"--master-port={self.held_port()}", "--json", "--nproc-per-node=1")
        found = json.loads(first)
        self.assertEqual([node["facts"][0]["name"] for node in found["nodes"]], ["LibTorch"] * 2)
        self.assertEqual(found["differences"], [{"name": "ulimit -n (open files)", "values": ["1000", "900"],
                                                 "odd_nodes": [0, 1]}])
        self.assertIs(found["ok"], False)
        self.assertEqual([(each["where"], each["ranks"]) for each in found["measurements"]], [("inside host 0", 2)])
        self.assertGreater(found["measurements"][0]["latency_microseconds"], 0)
        self.assertEqual(second, "")

    def network(self, *mtus):
        """Returns namespaces that a pair of devices joins. Skips the test if namespaces are not permitted."""
        names = [f"fsdp{os.getpid()}{side}" for side in "ab"]
        add = ["ip", "netns", "add", names[0]]
        if shutil.which("ip") is None or subprocess.run(add, capture_output=True, check=False).returncode:
            self.skipTest("network namespaces are not permitted here")
        self.addCleanup(subprocess.run, ["ip", "netns", "del", names[0]])
        steps = [f"netns add {names[1]}",
                 f"link add eth0 netns {names[0]} type veth peer name eth0 netns {names[1]}"]
        for side, name in enumerate(names):
            steps += [f"-n {name} address add 10.77.0.{side + 1}/24 dev eth0",
                      f"-n {name} link set eth0 mtu {mtus[side]} up", f"-n {name} link set lo up"]
        for step in steps:
            subprocess.run(["ip", *step.split()], check=True, capture_output=True)
        self.addCleanup(subprocess.run, ["ip", "netns", "del", names[1]])
        return names

    def test_hosts_are_compared_by_the_way_to_node_0_and_what_is_between_them_is_measured(self):
        names = self.network(1500, 1400)
        subprocess.run(["ip", "netns", "exec", names[1], sys.executable, "-c", TURN_TSO_OFF, "eth0"], check=True)
        inside = [["ip", "netns", "exec", name] for name in names]
        first, _ = self.both_nodes(inside, "--master-addr=10.77.0.1", "--nproc-per-node=2")
        self.assertRegex(first, r"MTU towards node 0: 1500 on node 0 \(.*\), 1400 on node 1 ")
        self.assertIn("eth0 10.77.0.1 mtu 1500", first)
        self.assertRegex(first, r"offloads towards node 0: tso on, gso on, gro \w+ on node 0 \(.*\), "
                                    r"tso off, gso on, gro")
        for where, ranks in (("inside host 0", 2), ("inside host 1", 2), ("between hosts", 2), ("all ranks", 4)):
            self.assertRegex(first, rf"\n{where} +{ranks} +\d+\.\d us +\d+\.\d MB/s\n")


class Variables(FsdprunTest):
    def test_reach_the_ranks(self):
        wanted = {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "eth7", "GLOO_SOCKET_IFNAME": "lo",
                  "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
        self.environment.update(wanted)
        self.check(2, f"env | grep -E '^({'|'.join(wanted)})='",
                   out=[f"[rank {rank}] {name}={value}" for rank in range(2) for name, value in wanted.items()])

    def test_the_interface_of_gloo_is_used(self):
        for name, status in (("no-such-interface", 1), ("lo", 0)):
            self.environment["GLOO_SOCKET_IFNAME"] = name
            result = self.run_ranks("--doctor", "--backend=gloo")
            self.assertEqual(result.returncode, status, result.err)
            self.assertIn(name if status else "GLOO_SOCKET_IFNAME=lo", result.err if status else result.out)



if __name__ == "__main__":
    unittest.main()
