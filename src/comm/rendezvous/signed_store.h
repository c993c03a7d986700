#pragma once
/// \file
/// A rendezvous store to which others may write too.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>

namespace fsdp {

/// `store`, of which only values count that somebody has written who knows `token`: each carries a code of its key and
/// its value (see message_code). Reading any other one throws Error. Counters (`add`) carry none, and nothing is
/// hidden: who can reach the store can read it, and can spoil it, but not be taken for a rank of the job.
c10::intrusive_ptr<c10d::Store> make_signed_store(c10::intrusive_ptr<c10d::Store> store, std::string token);

}  // namespace fsdp
