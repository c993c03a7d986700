// Compares the scales with those of torch.amp's GradScaler.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "amp/scaled_net.h"

namespace fsdp::test {
namespace {

std::vector<double> scales_of_torch(const GradScalerOptions& options, const std::string& infs) {
  const auto command = c10::str(FSDP_TEST_PYTHON, " ", FSDP_TEST_SOURCES "/python/scaler.py", " ", options.init_scale,
                                " ", options.growth_factor, " ", options.backoff_factor, " ", options.growth_interval,
                                " ", infs, " 2>/dev/null");
  std::vector<double> scales;
  FILE* output = popen(command.c_str(), "r");
  double scale = 0;
  while (std::fscanf(output, "%la", &scale) == 1) scales.push_back(scale);
  pclose(output);
  return scales;
}

// Returns the scales of fsdp's GradScaler. Every second inf is a NaN, which must have the same effect.
std::vector<double> scales_of_ours(const GradScalerOptions& options, const std::string& infs, int world) {
  std::vector<double> scales;
  run_thread_ranks(world, [&](int r) {
    Scaled model;
    GradScaler scaler(options);
    for (size_t step = 0; step < infs.size(); ++step) {
      model.backward(scaler, static_cast<int>(step));
      const auto planter = static_cast<int>(step) % world;
      if (infs[step] == '1') model.plant(step % 2 == 0 ? kInf : NAN, planter);
      scaler.step(*model.optimizer);
      scaler.update();
      if (r == 0) scales.push_back(scaler.get_scale());
    }
  });
  return scales;
}

TEST(GradScaler, ScalesAreThoseOfTorchAmpOnPlantedInfs) {
  const std::string infs = "0010001111000000000010100000000001";
  const GradScalerOptions doubling{.init_scale = 1024, .growth_interval = 3};
  if (scales_of_torch(doubling, "0").empty()) GTEST_SKIP() << "no torch in the virtual environment (scripts/setup)";
  for (const auto& options :
       {doubling,
        GradScalerOptions{.init_scale = 10.1, .growth_factor = 1.7, .backoff_factor = 0.3, .growth_interval = 2}}) {
    const auto expected = scales_of_torch(options, infs);
    ASSERT_EQ(expected.size(), infs.size());
    for (const int world : worlds_up_to(4)) EXPECT_EQ(scales_of_ours(options, infs, world), expected) << world;
  }
}

}  // namespace
}  // namespace fsdp::test
