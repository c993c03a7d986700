// Python's readers open the files of a checkpoint.

#include <fsdp/checkpoint.h>
#include <fsdp/serialize.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iomanip>

#include "state/format/checkpoint_folder.h"
#include "support/small_net.h"
#include "state/files.h"

namespace fsdp::test {
namespace {

int run_python(const std::string& arguments) {
  return std::system((std::string(FSDP_TEST_PYTHON) + " " + arguments).c_str());
}

bool has_python() { return run_python("-c 'import safetensors, torch' >/dev/null 2>&1") == 0; }
constexpr char kNoPython[] = "no safetensors beside torch in the virtual environment (scripts/setup installs it)";

std::shared_ptr<SmallNetImpl> net_with_scalar() {
  const auto net = build_alike([] {
    auto model = std::make_shared<SmallNetImpl>();
    model->to(torch::kDouble);
    return model;
  });
  net->register_parameter("scalar", torch::tensor(0.5, torch::kDouble));
  return net;
}

// Names, sizes and values, as state_python.py reads them. Collective; rank 0 writes.
void write_values(const std::string& path, const torch::nn::Module& net) {
  std::ofstream out;
  if (rank() == 0) out.open(path);
  out << std::setprecision(17);
  const char* before = "{";
  for (const auto& parameter : net.named_parameters()) {
    const auto values = full_tensor(parameter.value()).contiguous();
    out << std::exchange(before, ",") << '"' << parameter.key() << "\": [" << values.sizes() << ", [";
    for (int64_t i = 0; i < values.numel(); ++i) out << (i > 0 ? "," : "") << values.const_data_ptr<double>()[i];
    out << "]]";
  }
  out << "}";
}

TEST(StatePython, SafetensorsAndDistributedCheckpointReadWhatRanksSaved) {
  if (!has_python()) GTEST_SKIP() << kNoPython;
  const state::TemporaryFolder folder;
  run_thread_ranks(3, [&](int) {
    const auto net = net_with_scalar();
    const auto group = shard_blocks(*net);
    save_checkpoint(folder.path(), group);
    write_values(folder / "expected.json", *net);
  });
  EXPECT_EQ(run_python(FSDP_TEST_SOURCES "/python/state.py" " checkpoint " + state::find_checkpoint(folder.path()) + " " +
                       (folder / "expected.json")),
            0);
}

TEST(StatePython, TorchLoadOpensWhatRank0Wrote) {
  if (!has_python()) GTEST_SKIP() << kNoPython;
  const state::TemporaryFolder folder;
  run_thread_ranks(3, [&](int) {
    const auto net = net_with_scalar();
    const auto group = shard_blocks(*net);
    fsdp::save(group, folder / "model.pt");
    write_values(folder / "expected.json", *net);
  });
  EXPECT_EQ(run_python(FSDP_TEST_SOURCES "/python/state.py" " archive " + (folder / "model.pt") + " " + (folder / "expected.json")), 0);
}

}  // namespace
}  // namespace fsdp::test
