#pragma once
/// \file
/// What the commands read: a checkpoint, or a safetensors file of whole tensors.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "state/format/checkpoint_reader.h"

namespace ckpt {

/// Tensors whose elements can be read. One thread.
class Source {
 public:
  virtual ~Source() = default;
  /// Of a file, that of no step by 0 ranks with all tensors in the model.
  virtual const fsdp::state::Manifest& manifest() const = 0;
  virtual void read(const std::string& name, const fsdp::state::TensorRecord& tensor,
                    fsdp::state::ElementRange elements, std::span<std::byte> out) = 0;
};

/// `path`: a checkpoint, the folder of a run's checkpoints, or a file. Throws FormatError.
std::unique_ptr<Source> open_source(const std::string& path);

uint64_t bytes_in(const fsdp::state::TensorRecord& tensor);
uint64_t bytes_in(const fsdp::state::TensorRecords& tensors);

/// Calls `act(bytes)` with elements of a tensor, a few MiB at a time, in order.
void for_each_piece(Source& source, const std::string& name, const fsdp::state::TensorRecord& tensor,
                    fsdp::state::ElementRange elements, const std::function<void(std::span<const std::byte>)>& act);

}  // namespace ckpt
