// The program that docs/tutorial.md shows in parts: seeds, data and metrics. It also saves and loads.
// tests/repo/documents_test.py compares it with the page.

#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdint>
#include <iostream>
#include <limits>
#include <optional>
#include <vector>

namespace {

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{4, 16}, last{16, 2};
  torch::nn::Dropout dropout{0.1};
  NetImpl() {
    register_module("first", first);
    register_module("last", last);
    register_module("dropout", dropout);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(dropout(torch::tanh(first(x)))); }
};
TORCH_MODULE(Net);

// Points, and whether their coordinates sum to more than 0.
struct Points : torch::data::Dataset<Points> {
  torch::Tensor points = torch::sin(torch::arange(400)).view({100, 4});
  torch::data::Example<> get(size_t i) override {
    const auto point = points[static_cast<int64_t>(i)];
    return {point, (point.sum() > 0).to(torch::kLong)};
  }
  std::optional<size_t> size() const override { return 100; }
};

constexpr int epochs = 5;

void train(fsdp::Sharded<Net>& model, torch::optim::AdamW& optimizer) {
  auto dataset = Points().map(torch::data::transforms::Stack<>());
  const size_t batch_size = 10;
  double best = std::numeric_limits<double>::infinity();

  fsdp::data::DistributedSampler sampler(*dataset.size(), {.seed = 1});
  for (int epoch = 0; epoch < epochs; ++epoch) {
    sampler.set_epoch(epoch);  // another order in every epoch, of which each rank takes its part
    auto batches = torch::data::make_data_loader(dataset, sampler, batch_size);
    fsdp::RunningSums sums(3, torch::kCPU);
    for (auto& [x, y] : *batches) {
      optimizer.zero_grad();
      auto scores = model(x);
      auto loss = torch::cross_entropy_loss(scores, y);
      loss.backward();
      optimizer.step();
      sums.add({loss * x.size(0), (scores.argmax(1) == y).sum(), torch::tensor(x.size(0))});
    }
    auto total = sums.over_ranks();
    double mean_loss = total[0] / total[2], accuracy = total[1] / total[2];
    if (fsdp::rank() == 0) std::cout << mean_loss << ' ' << accuracy << '\n';
    if (mean_loss > best) break;  // all ranks have the same number, so all stop or none
    best = mean_loss;
  }
}

void save_all(fsdp::Sharded<Net>& model, torch::optim::AdamW& optimizer) {
  fsdp::save_checkpoint("runs/a", model, &optimizer, {.step = epochs});  // each rank writes its rows
  fsdp::save(model, "model.pt");                                         // whole, as torch::save writes it
  fsdp::save_safetensors("model.safetensors", model);                    // whole, for Python
}

// Returns true if each of the three files gives back the values that were saved.
bool are_loaded_as_saved(fsdp::Sharded<Net>& model, torch::optim::AdamW& optimizer) {
  std::vector<torch::Tensor> before;
  for (auto& p : model->parameters()) before.push_back(fsdp::full_tensor(p));
  const auto forget = [&] {
    torch::NoGradGuard no_grad;
    for (auto& p : model->parameters()) p.zero_();
  };
  const auto is_as_before = [&] {
    bool same = true;
    const auto parameters = model->parameters();
    for (size_t i = 0; i < before.size(); ++i) same &= torch::equal(before[i], fsdp::full_tensor(parameters[i]));
    return same;
  };
  forget();
  int64_t step = fsdp::load_checkpoint("runs/a", model, &optimizer).step;  // with any number of ranks
  bool same = is_as_before() && step == epochs;
  forget();
  fsdp::load(model, "model.pt");
  same &= is_as_before();
  forget();
  fsdp::load_safetensors("model.safetensors", model);
  return is_as_before() && same;
}

}  // namespace

int main() {
  fsdp::init_process_group();
  torch::manual_seed(1);  // the same on every rank: what is made is equal
  Net net;
  fsdp::Sharded<Net> model = fsdp::fully_shard(net);
  torch::manual_seed(1 + fsdp::rank());  // from here each rank draws its own numbers, e.g. for dropout
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
  train(model, optimizer);
  save_all(model, optimizer);
  const bool right = are_loaded_as_saved(model, optimizer);
  fsdp::destroy_process_group();
  return right ? 0 : 1;
}
