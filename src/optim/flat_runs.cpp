#include "optim/flat_runs.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/irange.h>

#include <algorithm>

#include "memory/flat_buffer.h"
#include "runtime/runs.h"

namespace fsdp::optim {
namespace {

using memory::FlatBuffer;
using runtime::Extent;
using runtime::flat_range;
using runtime::location_of;
using runtime::visit_runs;

Extent whole_extent(const Update& update) {
  Extent extent{true, update.kernel_key, update.rows.numel(), {location_of(update.rows), location_of(update.gradient)}};
  for (const auto& state : update.states) extent.locations.push_back(location_of(state));
  return extent;
}

at::ScalarType dtype_of(const StateForm& form, const at::Tensor& rows) {
  return form.dtype.value_or(rows.scalar_type());
}

bool is_placed(const Update& update, const at::Tensor& state, const StateForm& form) {
  if (!state.defined() || state.scalar_type() != dtype_of(form, update.rows) ||
      state.device() != update.rows.device() || state.strides() != update.rows.strides())
    return false;
  return !update.part || update.rows.numel() == 0 || memory::buffer_of(state) != nullptr;
}

void place_state(Update& update, size_t kind, const StateForm& form, at::Tensor place) {
  auto& state = update.states[kind];
  if (state.defined())
    place.copy_(state);
  else
    place.fill_(form.initial);
  state = std::move(place);
}

void place_alone(Update& update, size_t kind, const StateForm& form) {
  auto options = at::TensorOptions().dtype(dtype_of(form, update.rows)).device(update.rows.device());
  place_state(update, kind, form, at::empty_strided(update.rows.sizes(), update.rows.strides(), options));
}

void place_run(std::span<Update* const> run, int64_t numel, size_t kind, const StateForm& form) {
  const auto& rows = run.front()->rows;
  const auto dtype = dtype_of(form, rows);
  const size_t element_size = c10::elementSize(dtype);
  auto& group = *run.front()->part->group;
  const auto block = group.flats()[group.slots()[run.front()->part->slot].place.plane].allocate_state(
      static_cast<size_t>(numel) * element_size);
  memory::flat_tensor(block, 0, numel, dtype).zero_();  // the padding between states must be zero too
  for (auto* update : run) {
    memory::PartStorage storage(rows.device(), static_cast<size_t>(update->rows.numel()) * element_size);
    const auto distance = location_of(update->rows).first - location_of(rows).first;
    storage.attach(block, static_cast<size_t>(distance) * element_size);
    place_state(*update, kind, form, storage.tensor(update->rows.sizes(), update->rows.strides(), dtype));
  }
}

// Calls `visit` for each flat buffer of the run. A flat buffer can be a mapped file.
template <class Visit>
void for_each_file(const FlatRun& run, const Visit& visit) {
  for (const auto& flat : {run.rows, run.gradient})
    if (const auto buffer = memory::buffer_of(flat)) visit(*buffer);
  for (const auto& flat : run.states)
    if (const auto buffer = memory::buffer_of(flat)) visit(*buffer);
}

}  // namespace

std::vector<Piece> pieces_of(const FlatRun& run) {
  std::vector<Piece> pieces;
  const auto begin = location_of(run.first().rows).first;
  for (const auto* update : run.updates)
    pieces.push_back({location_of(update->rows).first - begin, update->rows.numel(), update->parameter_number,
                      update->first_element});
  return pieces;
}

void for_each_run(Updates& updates, const std::function<void(const FlatRun&)>& visit) {
  std::vector<FlatRun> runs;
  visit_runs(updates, whole_extent, [&](std::span<Update* const> run, int64_t numel) {
    const auto& first = *run.front();
    FlatRun flat{{run.begin(), run.end()}, flat_range(first.rows, numel), flat_range(first.gradient, numel)};
    for (const auto& state : first.states) flat.states.push_back(flat_range(state, numel));
    runs.push_back(std::move(flat));
  });
  for (size_t i : c10::irange(runs.size())) {
    if (i + 1 < runs.size()) for_each_file(runs[i + 1], [](const FlatBuffer& buffer) { buffer.read_ahead(); });
    visit(runs[i]);
    for_each_file(runs[i], [](const FlatBuffer& buffer) { buffer.mark_cold(); });
  }
}

void place_states(Updates& updates, const StateForm& form) {
  size_t kinds = 0;
  for (const auto& update : updates) kinds = std::max(kinds, update.states.size());
  for (size_t kind : c10::irange(kinds)) {
    const auto is_unplaced = [&](const Update& update) {
      return kind < update.states.size() && !is_placed(update, update.states[kind], form);
    };
    for (auto& update : updates)
      if (is_unplaced(update) && (!update.part || update.rows.numel() == 0)) place_alone(update, kind, form);
    visit_runs(
        updates,
        [&](const Update& update) {
          return Extent{is_unplaced(update), {}, update.rows.numel(), {location_of(update.rows)}};
        },
        [&](std::span<Update* const> run, int64_t numel) { place_run(run, numel, kind, form); });
  }
}

}  // namespace fsdp::optim
