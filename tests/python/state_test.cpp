// Tests that Python's readers can open the files of a checkpoint.

#include <fsdp/checkpoint.h>
#include <fsdp/serialize.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iomanip>

#include "python/script.h"
#include "state/files.h"
#include "state/format/checkpoint_folder.h"
#include "support/small_net.h"

namespace fsdp::test {
namespace {

std::shared_ptr<SmallNetImpl> net_with_more() {
  const auto net = build_alike([] {
    auto model = std::make_shared<SmallNetImpl>();
    model->to(torch::kDouble);
    return model;
  });
  net->register_parameter("scalar", torch::tensor(0.5, torch::kDouble));
  // Each of three ranks has rows of several matrices, and only some rows of some of them.
  net->register_parameter("stacked", torch::arange(4.0 * 20 * 420, torch::kDouble).view({4, 20, 420}));
  return net;
}

// Writes names, sizes and values as state.py reads them. Collective; rank 0 writes.
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

TEST(StatePython, ReadsWhatRanksSavedAsSafetensorsADistributedCheckpointAndAnArchive) {
  FSDP_NEEDS_PYTHON("safetensors torch");
  const state::TemporaryFolder folder;
  run_thread_ranks(3, [&](int) {
    const auto net = net_with_more();
    const auto group = shard_blocks(*net);
    save_checkpoint(folder.path(), group);
    fsdp::save(group, folder / "model.pt");
    write_values(folder / "expected.json", *net);
  });
  const std::string expected = " " + (folder / "expected.json");
  EXPECT_EQ(run_script("state.py checkpoint " + state::find_checkpoint(folder.path()) + expected), 0);
  EXPECT_EQ(run_script("state.py archive " + (folder / "model.pt") + expected), 0);
}

}  // namespace
}  // namespace fsdp::test
