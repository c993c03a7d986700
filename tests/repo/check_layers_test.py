"""check_layers.py accepts a good tree and finds each kind of bad include."""

import unittest

from tree import Tree
import check_layers


class CheckLayers(Tree):
    def setUp(self):
        super().setUp()
        self.write("src/layout/rows.h", "#include <vector>\n")
        self.write("src/comm/core/gather.cpp",
                   '#include "comm/core/gather.h"\n#include "layout/rows.h"\n#include <fsdp/error.h>\n')
        self.write("src/comm/shm/ring.h", '#include "comm/core/gather.h"\n#include <fsdp/gather.h>\n')
        self.write("src/comm/group/join.cpp", '#include "comm/shm/ring.h"\n')
        self.write("include/fsdp/error.h", "#include <c10/util/Exception.h>\n")
        self.write("include/fsdp/gather.h", "#include <fsdp/error.h>\n")
        self.write("include/fsdp/fsdp.h", "#include <fsdp/error.h>\n#include <fsdp/gather.h>\n")

    def assert_finds(self, text):
        problems = check_layers.check(self.root)
        self.assertEqual(len(problems), 1, problems)
        self.assertIn(text, problems[0])

    def test_accepts_includes_that_point_downwards(self):
        self.assertEqual(check_layers.check(self.root), [])

    def test_finds_an_upward_include(self):
        self.write("src/layout/rows.cpp", '#include "comm/core/gather.h"\n')
        self.assert_finds("comm/core is a higher layer")

    def test_finds_an_upward_include_by_a_public_header(self):
        self.write("include/fsdp/error.h", "#include <fsdp/fully_shard.h>\n")
        self.assert_finds("api is a higher layer")

    def test_finds_a_sibling_include(self):
        self.write("src/optim/adam.cpp", '  #  include "init/save.h"\n')
        self.assert_finds("init is a sibling")

    def test_finds_a_private_header_in_a_public_one(self):
        self.write("include/fsdp/gather.h", '#include "layout/rows.h"\n')
        self.assert_finds("src/ is not installed")

    def test_finds_a_private_type_in_a_public_header(self):
        self.write("include/fsdp/gather.h", "std::shared_ptr<runtime::ParamGroup> group;\n")
        self.assert_finds("names runtime::, which is not public")

    def test_finds_a_declaration_of_a_private_type_in_a_public_header(self):
        self.write("include/fsdp/gather.h", "namespace runtime {\nclass ParamGroup;\n}\n")
        self.assert_finds("names namespace runtime, which is not public")

    def test_finds_tensors_in_layout(self):
        self.write("src/layout/rows.h", "#include <ATen/core/Tensor.h>\n")
        self.assert_finds("integers only")

    def test_finds_the_umbrella_header_in_a_layer(self):
        self.write("src/train/loop.cpp", "#include <fsdp/fsdp.h>\n")
        self.assert_finds("for programs")

    def test_finds_a_path_that_climbs(self):
        self.write("src/comm/core/gather.h", '#include "../layout/rows.h"\n')
        self.assert_finds("from src/")

    def test_finds_a_folder_that_is_no_layer(self):
        self.write("src/common/things.h", "")
        self.assert_finds("no layer")

    def test_finds_an_upward_include_between_rooms(self):
        self.write("src/comm/core/gather.h", '#include "comm/shm/ring.h"\n')
        self.write("src/comm/shm/ring.h", "")
        self.assert_finds("comm/shm is a higher room")

    def test_finds_an_include_between_sibling_rooms(self):
        self.write("src/comm/c10d/wire.cpp", '#include "comm/shm/ring.h"\n')
        self.assert_finds("comm/shm is a sibling")

    def test_finds_a_public_header_of_a_higher_room(self):
        self.write("src/comm/shm/ring.h", "#include <fsdp/process_group.h>\n")
        self.assert_finds("comm/group is a higher room")

    def test_finds_a_file_in_no_room(self):
        self.write("src/comm/ring.h", "")
        self.assert_finds("comm is no room of comm")

    def test_finds_a_room_that_is_not_listed(self):
        self.write("src/comm/things/ring.h", "")
        self.assert_finds("comm/things is no room of comm")

    def test_finds_a_circle_of_which_a_source_file_is_a_part(self):
        self.write("src/comm/shm/peers.h", '#include "comm/shm/ring.h"\n')
        self.write("src/comm/shm/ring.cpp", '#include "comm/shm/ring.h"\n#include "comm/shm/peers.h"\n')
        self.assert_finds("comm/shm/peers -> comm/shm/ring -> comm/shm/peers: a circle of includes among 2 files")

    def test_finds_a_public_header_of_no_layer(self):
        self.write("include/fsdp/mystery.h", "")
        self.assert_finds("of which layer?")

    def test_finds_a_private_header_in_an_example(self):
        self.write("examples/01_first.cpp", '#include "layout/rows.h"\n')
        self.assert_finds("public headers only")


if __name__ == "__main__":
    unittest.main()
