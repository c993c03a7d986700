#include "comm/shm/collectives.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <span>
#include <utility>

#include "comm/core/pieces.h"

namespace fsdp::shm {
namespace {

/// Consecutive elements of one plane that move in one round.
struct Range {
  size_t plane;
  int64_t in_slice;  ///< index of the first element in the rank's slice
  int64_t in_whole;  ///< index of the first element in the flat tensor
  int64_t count;
  size_t position;  ///< offset of the elements in the window, in bytes
};

/// Divides the data of a collective into rounds. The data are several flat tensors, the planes, which consist of the
/// ranks' slices. All slices of one rank, each beginning at a multiple of 16 bytes, pass through a window that takes
/// the same number of bytes in each round. A slot has a window for each reader, or one for all readers.
class Windows {
 public:
  /// A slot holds `targets` windows. If `turns` is 0, `tensors` are like the slices of one rank, and all slices of a
  /// plane have the same length. Otherwise they are whole planes, of which each of `turns` ranks handles one window per
  /// round, in the order of ranks.
  Windows(std::span<const at::Tensor> tensors, int targets, size_t slot_bytes, int turns = 0) : turns_(turns) {
    int64_t bytes = 0;
    for (const auto& tensor : tensors) {
      planes_.push_back({bytes, tensor.numel(), static_cast<int64_t>(tensor.element_size())});
      bytes += align_slice(static_cast<int64_t>(tensor.nbytes()));
    }
    const int64_t sharers = std::max(1, turns), room = static_cast<int64_t>(slot_bytes) / targets;
    length_ = std::max(kSliceAlignment,
                       std::min(align_slice(divide_up(bytes, sharers)), room / kSliceAlignment * kSliceAlignment));
    rounds_ = divide_up(bytes, length_ * sharers);
    slot_bytes_ = rounds_ == 0 ? 0 : static_cast<size_t>(length_ * targets);
  }

  /// Returns the number of rounds, at least one, so that ranks meet.
  int64_t rounds() const { return std::max<int64_t>(1, rounds_); }
  /// Returns the bytes of a slot that the windows take.
  size_t slot_bytes() const { return slot_bytes_; }
  /// Returns the offset of `reader`'s window in the slot of `writer`. A slot has no window for its own writer.
  size_t position(int writer, int reader) const {
    return static_cast<size_t>((reader <= writer ? reader : reader - 1) * length_);
  }
  /// Calls `visit(range)` for each range of `rank`'s elements that moves in this round. Returns their number of bytes.
  template <class Visit>
  size_t visit(int rank, int64_t round, const Visit& visit) const {
    const int64_t begin = (turns_ == 0 ? round : round * turns_ + rank) * length_, end = begin + length_;
    size_t bytes = 0;
    for (size_t i = 0; i < planes_.size(); ++i) {
      const auto& [start, numel, element] = planes_[i];
      const int64_t from = std::max(start, begin), to = std::min(start + numel * element, end);
      if (from >= to) continue;
      const int64_t first = (from - start) / element, count = (to - from) / element;
      visit(Range{i, first, turns_ == 0 ? rank * numel + first : first, count, static_cast<size_t>(from - begin)});
      bytes += static_cast<size_t>(to - from);
    }
    return bytes;
  }

 private:
  struct Plane {
    int64_t start;  // offset of the plane among a rank's slices, in bytes
    int64_t numel, element_bytes;
  };
  std::vector<Plane> planes_;
  int64_t length_ = 0, rounds_ = 0;
  size_t slot_bytes_ = 0;
  int turns_;
};

std::byte* address_of(const at::Tensor& tensor, int64_t element) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr()) + element * static_cast<int64_t>(tensor.element_size());
}

size_t bytes_of(const at::Tensor& tensor, int64_t count) { return static_cast<size_t>(count) * tensor.element_size(); }

struct Reduction {
  std::vector<ReducePlane> planes;  // the outputs are this rank's slices, or whole tensors of which it fills a part
  Windows windows;
  ReduceOp op;
  double scale;
  Writer writer;

  void write(int64_t round, std::byte* slot) const {
    for (int reader = 0; reader < writer.world_size; ++reader) {
      if (reader == writer.rank) continue;
      auto* window = slot + windows.position(writer.rank, reader);
      writer.traffic->add_sent(windows.visit(reader, round, [&](const Range& range) {
        const auto& [output, input] = planes[range.plane];
        copy_range(input, range.in_whole, range.in_whole + range.count, output.element_size(), window + range.position);
      }));
    }
  }

  void read(int64_t round, const Slots& slots) const {
    const size_t bytes = windows.visit(writer.rank, round, [&](const Range& range) {
      const at::Tensor& output = planes[range.plane].output;
      const int64_t begin = range.in_whole;
      const auto sum = [&](int64_t first, int64_t count, const std::byte* own) {
        std::vector<at::Tensor> contributions;
        for (int rank = 0; rank < writer.world_size; ++rank) {
          const auto* window = slots(static_cast<size_t>(rank)) + windows.position(rank, writer.rank);
          const auto* memory = rank == writer.rank ? own : window + range.position + bytes_of(output, first - begin);
          contributions.push_back(memory == nullptr
                                      ? at::zeros({count}, output.options())
                                      : at::from_blob(const_cast<std::byte*>(memory), {count}, output.options()));
        }
        reduce_in_rank_order(output.narrow(0, range.in_slice + first - begin, count), contributions, writer.rank, op,
                             scale);
      };
      visit_ranges(planes[range.plane].input, begin, begin + range.count, sum);
    });
    writer.traffic->add_received(bytes * static_cast<size_t>(writer.world_size - 1));
  }
};

// Copies slices of `input` to the other ranks: the same slices to all, or a different slice to each.
struct Exchange {
  std::vector<GatherPlane> planes;
  Windows windows;
  bool is_for_each;
  Writer writer;

  void write(int64_t round, std::byte* slot) const {
    for (int reader = 0; reader < writer.world_size; ++reader) {
      if (is_for_each == (reader == writer.rank)) continue;
      auto* window = slot + begin_of(writer.rank, reader);
      writer.traffic->add_sent(windows.visit(reader, round, [&](const Range& range) {
        copy_bytes(window + range.position, own(range), bytes_of(planes[range.plane].input, range.count));
      }));
    }
  }

  void read(int64_t round, const Slots& slots) const {
    for (int rank = 0; rank < writer.world_size; ++rank) {
      const auto* window = slots(static_cast<size_t>(rank)) + begin_of(rank, writer.rank);
      const size_t bytes = windows.visit(rank, round, [&](const Range& range) {
        const auto& output = planes[range.plane].output;
        copy_bytes(address_of(output, range.in_whole), rank == writer.rank ? own(range) : window + range.position,
                   bytes_of(output, range.count));
      });
      if (rank != writer.rank) writer.traffic->add_received(bytes);
    }
  }

  size_t begin_of(int from, int to) const { return is_for_each ? windows.position(from, to) : 0; }
  // Returns the address of this rank's elements for the readers of the range.
  const std::byte* own(const Range& range) const {
    return address_of(planes[range.plane].input, is_for_each ? range.in_whole : range.in_slice);
  }
};

// Makes Steps that call `write` and `read` of the collective in each round.
template <class Collective>
Steps steps_of(Collective all) {
  const auto collective = std::make_shared<const Collective>(std::move(all));
  return {.count = collective->windows.rounds(),
          .slot_bytes = collective->windows.slot_bytes(),
          .write = [collective](int64_t round, std::byte* slot) { collective->write(round, slot); },
          .read = [collective](int64_t round, const Slots& slots) { collective->read(round, slots); }};
}

}  // namespace

Steps gather_steps(std::vector<GatherPlane> planes, const Writer& writer) {
  for (auto& plane : planes) plane = {plane.output.detach(), plane.input.detach()};
  const Windows windows(inputs_of(planes), /*targets=*/1, writer.slot_bytes);
  return steps_of(Exchange{std::move(planes), windows, /*is_for_each=*/false, writer});
}

Steps reduce_steps(std::vector<ReducePlane> planes, double scale, const Writer& writer) {
  for (auto& plane : planes) plane.output = plane.output.detach();
  const Windows windows(outputs_of(planes), writer.world_size - 1, writer.slot_bytes);
  return steps_of(Reduction{std::move(planes), windows, ReduceOp::kSum, scale, writer});
}

Steps all_reduce_steps(std::span<const at::Tensor> flats, ReduceOp op, const Writer& writer) {
  std::vector<ReducePlane> summed;
  std::vector<GatherPlane> gathered;
  for (const auto& flat : flats) {
    summed.push_back({flat, {{0, flat}}});
    gathered.push_back({flat, flat});
  }
  const Windows windows(flats, writer.world_size - 1, writer.slot_bytes, /*turns=*/writer.world_size);
  const auto reduction = steps_of(Reduction{std::move(summed), windows, op, /*scale=*/1.0, writer}),
             gather = steps_of(Exchange{std::move(gathered), windows, /*is_for_each=*/false, writer});
  return {
      .count = 2 * windows.rounds(),
      .slot_bytes = windows.slot_bytes(),
      .overlap = false,
      .write = [=](int64_t round, std::byte* slot) { (round % 2 == 0 ? reduction : gather).write(round / 2, slot); },
      .read = [=](int64_t round, const Slots& slots) { (round % 2 == 0 ? reduction : gather).read(round / 2, slots); }};
}

Steps all_to_all_steps(const at::Tensor& output, const at::Tensor& input, const Writer& writer) {
  const GatherPlane plane{output.detach(), input.detach()};
  const at::Tensor slice = slice_of(plane.input, input.numel() / writer.world_size, /*rank=*/0);
  const Windows windows({&slice, 1}, writer.world_size - 1, writer.slot_bytes);
  return steps_of(Exchange{{plane}, windows, /*is_for_each=*/true, writer});
}

Steps copy_steps(const at::Tensor& tensor, int source, bool is_source, const Writer& writer) {
  const at::Tensor flat = tensor.detach().view({-1});
  const Windows windows({&flat, 1}, /*targets=*/1, writer.slot_bytes);
  Steps steps{.count = windows.rounds(), .slot_bytes = is_source ? windows.slot_bytes() : 0};
  if (is_source)
    steps.write = [=](int64_t round, std::byte* slot) {
      writer.traffic->add_sent(windows.visit(0, round, [&](const Range& range) {
        copy_bytes(slot, address_of(flat, range.in_slice), bytes_of(flat, range.count));
      }));
    };
  else
    steps.read = [=](int64_t round, const Slots& slots) {
      writer.traffic->add_received(windows.visit(0, round, [&](const Range& range) {
        copy_bytes(address_of(flat, range.in_slice), slots(static_cast<size_t>(source)), bytes_of(flat, range.count));
      }));
    };
  return steps;
}

}  // namespace fsdp::shm
