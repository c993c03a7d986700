// Python's readers open the files of a checkpoint.

#include <fsdp/checkpoint.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iomanip>

#include "state/format/checkpoint_folder.h"
#include "support/small_net.h"
#include "unit/state_files.h"

namespace fsdp::test {
namespace {

int run_python(const std::string& arguments) {
  return std::system((std::string(FSDP_TEST_PYTHON) + " " + arguments).c_str());
}

TEST(StatePython, SafetensorsAndDistributedCheckpointReadWhatRanksSaved) {
  if (run_python("-c 'import safetensors, torch' >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "no safetensors beside torch in the virtual environment (scripts/setup installs it)";
  const state::TemporaryFolder folder;
  std::ofstream expected(folder / "expected.json");
  run_thread_ranks(3, [&](int r) {
    const auto net = build_alike([] {
      auto model = std::make_shared<SmallNetImpl>();
      model->to(torch::kDouble);
      return model;
    });
    net->register_parameter("scalar", torch::tensor(0.5, torch::kDouble));
    const auto group = shard_blocks(*net);
    save_checkpoint(folder.path(), group);
    const char* before = "{";
    for (const auto& parameter : net->named_parameters()) {
      const auto values = full_tensor(parameter.value()).contiguous();
      if (r != 0) continue;
      expected << std::exchange(before, ",") << '"' << parameter.key() << "\": [" << values.sizes() << ", [";
      expected << std::setprecision(17);
      for (int64_t i = 0; i < values.numel(); ++i) expected << (i > 0 ? "," : "") << values.const_data_ptr<double>()[i];
      expected << "]]";
    }
    if (r == 0) expected << "}" << std::flush;
  });
  EXPECT_EQ(run_python(FSDP_TEST_SCRIPT " " + state::find_checkpoint(folder.path()) + " " + (folder / "expected.json")),
            0);
}

}  // namespace
}  // namespace fsdp::test
