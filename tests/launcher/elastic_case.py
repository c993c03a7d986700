"""A test case that starts the nodes of a job with --nnodes MIN:MAX, all of them on this host."""

import pathlib

from fsdprun_case import FsdprunTest, wait_until

# A rank reports its place, and waits until the test lets the ranks of its world end.
RANK = ("echo $RANK/$WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE; touch $D/world$WORLD_SIZE.$RANK; "
        "while [ ! -e $D/end$WORLD_SIZE ]; do sleep 0.05; done")


class ElasticTest(FsdprunTest):
    def setUp(self):
        super().setUp()
        self.port = self.held_port()
        self.environment["PET_HEARTBEAT_TIMEOUT"] = "2"
        self.environment["PET_PEER_GRACE"] = "0"
        self.processes = []

    def tearDown(self):
        for process in self.processes:
            if process.returncode is None:
                process.kill()
            process.communicate()
        self.assert_all_end()
        super().tearDown()

    def node(self, nodes, *flags, script=RANK, last_call=0, join=60, ranks=1):
        process = self.start(f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}",
                             f"--rdzv-conf=join_timeout={join},last_call_timeout={last_call}",
                             f"--nproc-per-node={ranks}", *flags, "sh", "-c", script)
        self.processes.append(process)
        return process

    def first_node(self, nodes, *flags, **options):
        """Starts the node that hosts the store."""
        process = self.node(nodes, *flags, **options)
        listens = f"0100007F:{self.port:04X} 00000000:0000 0A"
        self.assertTrue(wait_until(lambda: listens in pathlib.Path("/proc/net/tcp").read_text()))
        return process

    def start_nodes(self, nodes, count, *flags, **options):
        """Starts `count` nodes, of which the first hosts the store."""
        first = self.first_node(nodes, *flags, **options)
        return [first, *(self.node(nodes, *flags, **options) for _ in range(count - 1))]

    def wait_for_world(self, ranks):
        self.take_files(*(f"world{ranks}.{rank}" for rank in range(ranks)))

    def let_end(self, ranks):
        (self.path / f"end{ranks}").touch()
