// A program outside the repository. It uses only installed headers and links only fsdp::fsdp.

#include <dlfcn.h>
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <iostream>
#include <stdexcept>
#include <string>

// Opens a library with a second copy of fsdp. Returns true if each of that copy's two calls reports that it is a second
// copy.
bool second_copy_is_refused(const char* path, const torch::Tensor& sharded) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto errors_of =
      reinterpret_cast<const char* (*)(const torch::Tensor*)>(dlsym(library, "errors_of_second_copy"));
  const std::string errors = errors_of(&sharded);
  std::cout << errors << '\n';
  const auto first = errors.find("fsdp::fully_shard: a different copy of fsdp");
  return first != std::string::npos && errors.find("fsdp::full_tensor", first) != std::string::npos &&
         errors.find("no error") == std::string::npos;
}

int main(int argc, char** argv) {
  fsdp::init_process_group();
  auto model = fsdp::fully_shard(torch::nn::Linear(4, 4));
  torch::Tensor output = model(torch::ones({2, 4}));
  output.sum().backward();
  std::cout << model << '\n' << output.sizes() << " on rank " << fsdp::rank() << " of " << fsdp::world_size() << '\n';
  const bool right = output.sizes() == torch::IntArrayRef({2, 4}) && model->weight.grad().defined();
  // A plugin that links fsdp statically has a second copy; a shared fsdp is loaded once.
  const bool is_shared = argc > 2;
  const bool one_copy = is_shared || second_copy_is_refused(argv[1], model->weight);
  bool is_caught = false;
  try {
    static_cast<void>(fsdp::placement_of(torch::Tensor()));
  } catch (const fsdp::UsageError&) {
    is_caught = true;
  }
  fsdp::destroy_process_group();
  return right && one_copy && is_caught ? 0 : 1;
}
