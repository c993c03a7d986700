#pragma once
/// \file
/// Captures the text of LibTorch's warnings.

#include <c10/util/Exception.h>

#include <string>

namespace fsdp::test {

/// Collects this thread's warnings as long as it lives.
class Warnings : c10::WarningHandler {
 public:
  Warnings() : previous_(c10::WarningUtils::get_warning_handler()) { c10::WarningUtils::set_warning_handler(this); }
  ~Warnings() override { c10::WarningUtils::set_warning_handler(previous_); }
  void process(const c10::Warning& warning) override { text += warning.msg() + "\n"; }
  std::string text;

 private:
  c10::WarningHandler* previous_;
};

}  // namespace fsdp::test
