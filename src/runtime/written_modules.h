#pragma once
/// \file
/// Sharded modules that LibTorch writes to an archive, e.g. torch::save(model, "m.pt").

namespace fsdp::runtime {

/// From now on LibTorch asks here before it writes an archive: one of a module whose parameters are this rank's rows
/// is refused by a UsageError, as a plain module that loads it would take their sizes. Tensors that are saved as such,
/// one or a vector of them, are written as they are. Once per process.
///
/// It uses LibTorch's hook for extra files of an archive, of which a process has one.
void observe_written_modules();

}  // namespace fsdp::runtime
