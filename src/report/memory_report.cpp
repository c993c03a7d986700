#include <fsdp/memory_report.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <ostream>

#include "api/group_view.h"
#include "comm/core/text.h"
#include "memory/flat_buffer.h"
#include "optim/state_tensors.h"
#include "report/byte_classes.h"
#include "runtime/param_group.h"

namespace fsdp {
namespace {

using nlohmann::ordered_json;
using report::kCounts;

// Returns the bytes of a parameter's optimizer state that no byte account counts, because an optimizer of torch::optim
// allocated them.
int64_t uncounted_state(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end() || !found->second) return 0;
  int64_t bytes = 0;
  for (const at::Tensor* tensor : optim::tensors_of(*found->second))
    if (tensor->defined() && tensor->has_storage() && !memory::buffer_of(*tensor))
      bytes += static_cast<int64_t>(tensor->nbytes());
  return bytes;
}

void add(ByteCount& count, int64_t bytes) {
  count.current += bytes;
  count.peak = std::max(count.peak, count.current);
}

std::string bytes_of(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  TextWriter text;
  text << std::fixed << std::setprecision(unit == 0 ? 0 : 1) << value << ' ' << kUnits[unit];
  return text.str();
}

std::string cell_of(const ByteCount& count) { return bytes_of(count.current) + " / " + bytes_of(count.peak); }

ordered_json json_of(const ByteCounts& counts) {
  ordered_json json;
  for (const auto& [name, count] : kCounts)
    json[std::string(name)] = {{"current", (counts.*count).current}, {"peak", (counts.*count).peak}};
  return json;
}

MemoryReport report_of(const Group& model, const torch::optim::Optimizer* optimizer) {
  const auto& groups = param_groups(model);
  MemoryReport report;
  report.rank = model.rank();
  report.world_size = model.world_size();
  report.all = byte_counts(*groups.front()->rank_state().account);
  int64_t uncounted = 0;
  for (const auto& group : groups) {
    report.groups.push_back({group->name(), byte_counts(*group->account())});
    if (optimizer == nullptr) continue;
    for (const auto& slot : group->slots()) {
      const auto bytes = uncounted_state(*optimizer, slot.tensor());
      add(report.groups.back().bytes.optimizer, bytes);
      uncounted += bytes;
    }
  }
  add(report.all.optimizer, uncounted);
  return report;
}

}  // namespace

MemoryReport memory_report(const Group& model) { return report_of(model, nullptr); }

MemoryReport memory_report(const Group& model, const torch::optim::Optimizer& optimizer) {
  return report_of(model, &optimizer);
}

std::string MemoryReport::to_json() const {
  ordered_json json{{"rank", rank}, {"world_size", world_size}, {"all", json_of(all)}};
  json["groups"] = ordered_json::array();
  for (const auto& group : groups) {
    ordered_json one{{"name", group.name}};
    one.update(json_of(group.bytes));
    json["groups"].push_back(std::move(one));
  }
  return json.dump(2);
}

std::ostream& operator<<(std::ostream& out, const MemoryReport& report) {
  std::vector<std::vector<std::string>> lines{{str_cat("rank ", report.rank, " of ", report.world_size)}, {"all"}};
  for (const auto& group : report.groups) lines.push_back({group.name});
  for (const auto& [name, count] : kCounts) {
    if ((report.all.*count).peak == 0) continue;
    lines[0].emplace_back(name);
    lines[1].push_back(cell_of(report.all.*count));
    for (size_t i = 0; i < report.groups.size(); ++i) lines[i + 2].push_back(cell_of(report.groups[i].bytes.*count));
  }
  for (size_t column = 0; column < lines[0].size(); ++column) {
    size_t width = 0;
    for (const auto& line : lines) width = std::max(width, line[column].size());
    for (auto& line : lines) {
      auto& cell = line[column];
      cell.insert(column == 0 ? cell.size() : 0, width - cell.size(), ' ');
    }
  }
  for (const auto& line : lines) {
    for (size_t column = 0; column < line.size(); ++column) out << (column == 0 ? "" : "  ") << line[column];
    out << '\n';
  }
  return out;
}

}  // namespace fsdp
