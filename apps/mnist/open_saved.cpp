// The test of mnist runs this plain LibTorch program. It opens a file that `mnist --save-model` wrote and lists its
// tensors.
#include <torch/torch.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <vector>

int main(int, char** argv) {
  std::ifstream file(argv[1], std::ios::binary);
  const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
  for (const auto& item : torch::pickle_load(bytes).toGenericDict())
    std::cout << item.key().toStringRef() << ' ' << item.value().toTensor().sizes() << '\n';
}
