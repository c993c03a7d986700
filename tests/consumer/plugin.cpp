// A library with its own copy of fsdp, which a program with fsdp opens.

#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <string>

// Returns the messages of the exceptions that the calls of this copy throw, joined.
extern "C" const char* errors_of_second_copy(const torch::Tensor* sharded) {
  static std::string errors;
  const auto note = [](const auto& act) {
    try {
      act();
      errors += "no error; ";
    } catch (const fsdp::UsageError& error) {
      errors += error.what_without_backtrace() + std::string("; ");
    }
  };
  fsdp::init_process_group();
  note([] { fsdp::fully_shard(torch::nn::Linear(4, 4)); });
  note([&] { return fsdp::full_tensor(*sharded); });
  fsdp::destroy_process_group();
  return errors.c_str();
}
