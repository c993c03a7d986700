#include "optim/flat_runs.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <map>

#include "comm/core/check.h"
#include "memory/part_storage.h"
#include "runtime/param_group.h"

namespace fsdp::optim {
namespace {

using memory::FlatBuffer;
using runtime::ParamGroup;

// What a group has on this rank, in the order of memory; null where a step leaves rows alone. A plain tensor is a line
// of its own.
using Line = std::vector<Update*>;

std::vector<Line> lines_of(Updates& updates) {
  std::vector<Line> lines;
  std::map<ParamGroup*, std::vector<Update*>> by_group;
  for (auto& update : updates) {
    if (update.rows.numel() == 0) continue;
    if (!update.part) {
      lines.push_back({&update});
      continue;
    }
    auto& of_slots = by_group[update.part->group.get()];
    of_slots.resize(update.part->group->slots().size());
    of_slots[update.part->slot] = &update;
  }
  for (const auto& [group, of_slots] : by_group) {
    auto& line = lines.emplace_back();
    for (size_t slot : c10::irange(of_slots.size()))
      if (group->slots()[slot].rows_numel() > 0) line.push_back(of_slots[slot]);
  }
  return lines;
}

int64_t first_element(const at::Tensor& tensor, const FlatBuffer& buffer) {
  const auto bytes = static_cast<const char*>(tensor.const_data_ptr()) - static_cast<const char*>(buffer.data());
  return bytes / static_cast<int64_t>(tensor.element_size());
}

Spot spot_of(const at::Tensor& tensor) {
  const auto buffer = memory::buffer_of(tensor);
  return buffer ? Spot{reinterpret_cast<uint64_t>(buffer.get()), first_element(tensor, *buffer)} : Spot{};
}

// `numel` elements of memory from the begin of `tensor` on.
at::Tensor stretch(const at::Tensor& tensor, int64_t numel) {
  const auto buffer = memory::buffer_of(tensor);
  if (!buffer) return tensor.detach().as_strided({numel}, {1});
  const auto offset = static_cast<size_t>(first_element(tensor, *buffer)) * tensor.element_size();
  return memory::flat_tensor(buffer, offset, numel, tensor.scalar_type());
}

Extent whole_extent(const Update& update) {
  Extent extent{true, update.recipe, update.rows.numel(), {spot_of(update.rows), spot_of(update.gradient)}};
  for (const auto& state : update.states) extent.spots.push_back(spot_of(state));
  return extent;
}

template <class ExtentOf, class Visit>
void visit_runs(Updates& updates, const ExtentOf& extent_of, const Visit& visit) {
  for (const auto& line : lines_of(updates)) {
    std::vector<Extent> extents;
    for (const auto* update : line) extents.push_back(update == nullptr ? Extent{} : extent_of(*update));
    for (const auto& run : plan_runs(extents)) visit(std::span(line).subspan(run.first, run.count), run.numel);
  }
}

bool is_settled(const Update& update, const at::Tensor& state) {
  if (!state.defined() || state.scalar_type() != update.rows.scalar_type() || state.device() != update.rows.device() ||
      state.strides() != update.rows.strides())
    return false;
  return !update.part || update.rows.numel() == 0 || memory::buffer_of(state) != nullptr;
}

void settle_one(Update& update, size_t kind, at::Tensor place) {
  auto& state = update.states[kind];
  if (state.defined())
    place.copy_(state);
  else
    place.zero_();
  state = std::move(place);
}

void settle_alone(Update& update, size_t kind) {
  auto options = at::TensorOptions().dtype(update.rows.scalar_type()).device(update.rows.device());
  settle_one(update, kind, at::empty_strided(update.rows.sizes(), update.rows.strides(), options));
}

void settle_run(std::span<Update* const> run, int64_t numel, size_t kind) {
  const auto& rows = run.front()->rows;
  const auto bytes = static_cast<size_t>(numel) * rows.element_size();
  auto& group = *run.front()->part->group;
  const auto block = group.flats()[group.params().place(run.front()->part->slot).flat].allocate_state(bytes);
  memory::flat_tensor(block, 0, numel, rows.scalar_type()).zero_();  // the padding, too
  for (auto* update : run) {
    memory::PartStorage storage(rows.device(), update->rows.nbytes());
    const auto distance = spot_of(update->rows).first - spot_of(rows).first;
    storage.attach(block, static_cast<size_t>(distance) * rows.element_size());
    settle_one(*update, kind, storage.tensor(update->rows.sizes(), update->rows.strides(), rows.scalar_type()));
  }
}

// LibTorch's kernels round what is behind the last full vector otherwise than the elements before it, and which rows
// that is depends on how rows are shared out. So a rest goes through in a vector of its own: every element has the same
// bits on any number of ranks.
void visit_in_vectors(const FlatRun& run, const std::function<void(const FlatRun&)>& visit) {
  constexpr int64_t kVectorBytes = 64;  // of the widest ones
  const int64_t vector = kVectorBytes / static_cast<int64_t>(run.rows.element_size());
  const int64_t rest = run.rows.numel() % vector, full = run.rows.numel() - rest;
  if (rest == 0 || !run.rows.is_cpu()) return visit(run);
  const auto each = [&](const auto& take) {
    FlatRun part{run.first, take(run.rows), take(run.gradient), {}};
    for (const auto& state : run.states) part.states.push_back(take(state));
    return part;
  };
  if (full > 0) visit(each([&](const at::Tensor& flat) { return flat.narrow(0, 0, full); }));
  const auto padded = each([&](const at::Tensor& flat) {
    auto values = at::zeros({vector}, flat.options());
    values.narrow(0, 0, rest).copy_(flat.narrow(0, full, rest));
    return values;
  });
  visit(padded);
  const auto put_back = [&](const at::Tensor& flat, const at::Tensor& values) {
    flat.narrow(0, full, rest).copy_(values.narrow(0, 0, rest));
  };
  put_back(run.rows, padded.rows);
  for (size_t i : c10::irange(run.states.size())) put_back(run.states[i], padded.states[i]);
}

// Of a run's memory that lies in files.
template <class Tell>
void tell_files(const FlatRun& run, const Tell& tell) {
  for (const auto& flat : {run.rows, run.gradient})
    if (const auto buffer = memory::buffer_of(flat)) tell(*buffer);
  for (const auto& flat : run.states)
    if (const auto buffer = memory::buffer_of(flat)) tell(*buffer);
}

}  // namespace

void for_each_run(Updates& updates, const std::function<void(const FlatRun&)>& visit) {
  std::vector<FlatRun> runs;
  visit_runs(updates, whole_extent, [&](std::span<Update* const> run, int64_t numel) {
    const auto& first = *run.front();
    FlatRun flat{first, stretch(first.rows, numel), stretch(first.gradient, numel), {}};
    for (const auto& state : first.states) flat.states.push_back(stretch(state, numel));
    runs.push_back(std::move(flat));
  });
  for (size_t i : c10::irange(runs.size())) {
    if (i + 1 < runs.size()) tell_files(runs[i + 1], [](const FlatBuffer& buffer) { buffer.read_ahead(); });
    visit_in_vectors(runs[i], visit);
    tell_files(runs[i], [](const FlatBuffer& buffer) { buffer.let_go(); });
  }
}

void settle_states(Updates& updates, const std::string& operation) {
  size_t kinds = 0;
  for (const auto& update : updates) {
    kinds = std::max(kinds, update.states.size());
    for (const auto& state : update.states)
      if (state.defined() && state.sizes() != update.rows.sizes())
        require(false, where(update, operation), name_of(update), " has optimizer state of other sizes: expected ",
                update.rows.sizes(), ", found ", state.sizes(),
                ". Load what this rank saved, with the same number of ranks and the same groups");
  }
  for (size_t kind : c10::irange(kinds)) {
    const auto is_unsettled = [&](const Update& update) {
      return kind < update.states.size() && !is_settled(update, update.states[kind]);
    };
    for (auto& update : updates)
      if (is_unsettled(update) && (!update.part || update.rows.numel() == 0)) settle_alone(update, kind);
    visit_runs(
        updates,
        [&](const Update& update) {
          return Extent{is_unsettled(update), {}, update.rows.numel(), {spot_of(update.rows)}};
        },
        [&](std::span<Update* const> run, int64_t numel) { settle_run(run, numel, kind); });
  }
}

}  // namespace fsdp::optim
