#pragma once
/// \file
/// A communicator that acts before each collective of its rank.

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "support/decorator.h"

namespace fsdp::test {

/// Calls `act` before each collective.
class Interrupted : public Decorator {
 public:
  Interrupted(std::shared_ptr<Communicator> inner, std::function<void()> act, std::string lane = "main")
      : Decorator(std::move(inner), std::move(lane)), act_(std::move(act)) {}

 protected:
  void before(Operation, uint64_t, Tag&) override { act_(); }
  std::shared_ptr<Communicator> decorate(std::shared_ptr<Communicator> inner, const std::string& name) override {
    return std::make_shared<Interrupted>(std::move(inner), act_, name);
  }

 private:
  std::function<void()> act_;
};

}  // namespace fsdp::test
