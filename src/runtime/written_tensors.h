#pragma once
/// \file
/// Rows that LibTorch writes to a file or a string, e.g. torch::save(model->parameters(), "p.pt").

namespace fsdp::runtime {

/// From now on LibTorch asks here before it pickles a tensor: rows of a parameter or of its gradient are refused by a
/// UsageError outside of LocalRows, as whoever reads them would take their sizes for the parameter's. Once per process.
///
/// It uses the place where LibTorch asks a backend what it wants to keep with a tensor, of which there is one for each
/// kind of device. What was there before is asked too.
void observe_written_tensors();

}  // namespace fsdp::runtime
