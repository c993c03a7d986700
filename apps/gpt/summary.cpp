#include "summary.h"

#include <fsdp/collectives.h>
#include <torch/types.h>

#include <array>
#include <cstdio>
#include <sstream>
#include <vector>

#include "frame/bytes_text.h"
#include "optimizer.h"

namespace gpt {
namespace {

using frame::bytes_text;

// The columns are parameters, gradients, optimizer state, and the peak of whole parameters.
constexpr size_t kColumns = 4;
using Row = std::array<int64_t, kColumns>;

std::vector<Row> rows_of_all_ranks(const Row& mine) {
  const auto output = fsdp::all_gather(torch::tensor(c10::ArrayRef<int64_t>(mine.data(), mine.size()), torch::kInt64));
  std::vector<Row> rows(static_cast<size_t>(fsdp::world_size()));
  const auto* number = output.const_data_ptr<int64_t>();
  for (auto& row : rows) {
    for (auto& value : row) value = *number++;
  }
  return rows;
}

Row unsharded_row(int64_t vocabulary, c10::Device device, const Arguments& arguments) {
  const Module module = make_module(arguments, vocabulary, device);
  const auto optimizer = make_optimizer(module->parameters(), arguments);
  const auto ids = torch::zeros({1, 1}, torch::TensorOptions(torch::kInt64).device(device));
  module->forward(ids, ids).backward();
  optimizer->step();
  const auto& flat = dynamic_cast<const fsdp::optim::FlatOptimizer&>(*optimizer);
  const HeldBytes held = held_bytes(module->parameters(), flat.state_bytes());
  return {held.parameters, held.gradients, held.optimizer_state, held.parameters};
}

void print_heading(std::ostream& out) {
  char text[128];
  std::snprintf(text, sizeof(text), "%-12s%19s%19s%19s%19s\n", "holds", "parameters", "gradients", "optimizer state",
                "whole, at most");
  out << text;
}

void print_row(std::ostream& out, const std::string& name, const Row& row, const Row& whole) {
  char text[64];
  std::snprintf(text, sizeof(text), "%-12s", name.c_str());
  out << text;
  for (size_t column = 0; column < kColumns; ++column) {
    const double share = 100.0 * static_cast<double>(row[column]) / static_cast<double>(whole[column]);
    std::snprintf(text, sizeof(text), "  %9s %5.1f %%", bytes_text(row[column]).c_str(), share);
    out << text;
  }
  out << '\n';
}

}  // namespace

std::string memory_table(const Model& model, const HeldBytes& held, int64_t vocabulary, const Arguments& arguments) {
  const auto rows =
      rows_of_all_ranks({held.parameters, held.gradients, held.optimizer_state, model.stats().whole.peak});
  if (fsdp::rank() != 0) return {};
  const Row whole = unsharded_row(vocabulary, model.parameters().front().device(), arguments);
  std::ostringstream out;
  print_heading(out);
  print_row(out, "unsharded", whole, whole);
  for (size_t rank = 0; rank < rows.size(); ++rank) print_row(out, "rank " + std::to_string(rank), rows[rank], whole);
  return out.str();
}

}  // namespace gpt
