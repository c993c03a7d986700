#pragma once
/// \file
/// A communicator that calls a function before each collective of its rank.

#include "support/decorator.h"

namespace fsdp::test {

/// Calls `act` before each collective of this communicator and of its duplicates.
class Interrupted : public Watched {
 public:
  Interrupted(std::shared_ptr<Communicator> inner, std::function<void()> act)
      : Watched(std::move(inner), [act = std::move(act)](const auto&...) { act(); }) {}
};

}  // namespace fsdp::test
