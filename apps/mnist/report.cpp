#include "report.h"

#include <fsdp/collectives.h>
#include <torch/types.h>

#include <iomanip>
#include <sstream>

#include "frame/bytes_text.h"

namespace mnist {

std::string epoch_text(int64_t epoch, double loss) {
  std::ostringstream text;
  text << "Train Epoch: " << epoch << "  Loss: " << std::fixed << std::setprecision(6) << loss;
  return text.str();
}

std::string test_text(const TestResult& result) {
  std::ostringstream text;
  text << "Test set: Average loss: " << std::fixed << std::setprecision(4) << result.average_loss
       << ", Accuracy: " << result.correct << '/' << result.samples << " (" << std::setprecision(2)
       << 100.0 * static_cast<double>(result.correct) / static_cast<double>(result.samples) << "%)";
  return text.str();
}

std::string peak_memory_text(const Model& model) {
  const auto stats = model.stats();
  const auto mine = torch::tensor({stats.rows.peak, stats.whole.peak, stats.gradient.peak, stats.optimizer.peak});
  const auto most = fsdp::all_reduce(mine, fsdp::ReduceOp::kMax);
  const auto of = [&](int64_t i) { return frame::bytes_text(most[i].item<int64_t>()); };
  return "Peak memory of a rank: rows " + of(0) + ", whole parameters " + of(1) + ", gradients " + of(2) +
         ", optimizer " + of(3);
}

}  // namespace mnist
