#pragma once
/// \file
/// The inputs of the commands: checkpoints, and safetensors files of whole tensors.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "state/format/checkpoint_reader.h"

namespace ckpt {

/// Tensors whose elements can be read. Only one thread may use a source.
class Source {
 public:
  virtual ~Source() = default;
  /// Returns the manifest of the checkpoint. For a file it has step 0, a world size of 0, and all tensors in the model.
  virtual const fsdp::state::Manifest& manifest() const = 0;
  virtual void read(const std::string& name, const fsdp::state::TensorRecord& tensor,
                    fsdp::state::ElementRange elements, std::span<std::byte> out) = 0;
};

/// Opens `path`, which is a checkpoint, a run's folder (its newest checkpoint is opened), or a safetensors file. Throws
/// FormatError.
std::unique_ptr<Source> open_source(const std::string& path);

uint64_t bytes_in(const fsdp::state::TensorRecord& tensor);
uint64_t bytes_in(const fsdp::state::TensorRecords& tensors);

/// Reads `elements` of a tensor in order, and calls `act` with a few MiB of their bytes at a time.
void for_each_piece(Source& source, const std::string& name, const fsdp::state::TensorRecord& tensor,
                    fsdp::state::ElementRange elements, const std::function<void(std::span<const std::byte>)>& act);

}  // namespace ckpt
