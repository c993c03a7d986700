#pragma once
/// \file
/// A communicator over c10d backends.

#include <fsdp/communicator.h>

#include <memory>

#include "comm/c10d/c10d_options.h"

namespace fsdp {

/// Joins the ranks that meet in `store`, whose keys must be this communicator's alone. Collective.
std::shared_ptr<Communicator> make_c10d_communicator(const c10::intrusive_ptr<c10d::Store>& store, C10dOptions options);

}  // namespace fsdp
