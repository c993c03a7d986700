#include "arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <stdexcept>

#include "frame/flag_checks.h"
#include "frame/optimizer_flags.h"
#include "frame/pipeline_flags.h"
#include "frame/sequence_methods.h"
#include "sizes.h"

namespace gpt {
namespace {

const std::map<std::string, Vocabulary> kTokenizers = {{"characters", Vocabulary::kCharacters},
                                                       {"words", Vocabulary::kWords},
                                                       {"gpt2", Vocabulary::kGpt2},
                                                       {"sentencepiece", Vocabulary::kSentencePiece}};

std::vector<std::string> size_names() {
  std::vector<std::string> names;
  for (const Size& size : kSizes) names.emplace_back(size.name);
  return names;
}

// Valid lengths. The upper bound is larger than any useful length, but so small that no product of lengths overflows.
const CLI::Range kLength(int64_t{1}, int64_t{1} << 20);

template <class Value>
CLI::Option* add(CLI::App& app, const char* flag, Value& value, const char* help, const CLI::Validator& check) {
  return app.add_option(flag, value, help)->check(check)->capture_default_str()->take_last();
}

void add_text_flags(CLI::App& app, Arguments& arguments) {
  app.add_option("--text,--data", arguments.text,
                 "A text file, or a folder with train.txt and valid.txt, to use instead of the text inside the program")
      ->check(frame::path())
      ->take_last();
  const auto choose = [&arguments](const std::string& name) { arguments.tokenizer = kTokenizers.at(name); };
  app.add_option_function<std::string>("--tokenizer", choose, "characters, words, gpt2 or sentencepiece (characters)")
      ->check(CLI::IsMember(kTokenizers))
      ->option_text("NAME")
      ->take_last();
  add(app, "--vocab_size", arguments.vocab_size, "Size of the vocabulary that SentencePiece learns from the text",
      kLength);
  app.add_option("--merges", arguments.merges, "GPT-2's file vocab.bpe, for --tokenizer gpt2")
      ->check(frame::path())
      ->take_last();
}

void add_model_flags(CLI::App& app, Arguments& arguments) {
  app.add_option("--size", "tiny, small, gpt2 or llama: sets the defaults of the next four flags and of --lr (tiny)")
      ->check(CLI::IsMember(size_names()))
      ->option_text("NAME")
      ->take_last();
  const auto add_part = [&](const char* flag, auto& value, const char* help) {
    app.add_option(flag, value, help)->check(kLength)->take_last();
  };
  add_part("--dim", arguments.dim, "Width of the model, a multiple of --heads");
  add_part("--layers", arguments.layers, "Number of blocks");
  add_part("--heads", arguments.heads, "Number of attention heads in a block");
  add_part("--seq", arguments.seq, "Number of tokens in a sequence, which is the longest context");
  add(app, "--dropout", arguments.dropout, "Fraction of the activations that training sets to zero",
      frame::number_from_0(0.99));
  app.add_flag("--tanh-gelu", arguments.tanh_gelu, "Approximate GELU with tanh, as GPT-2 does; not for llama");
}

void add_training_flags(CLI::App& app, Arguments& arguments) {
  add(app, "--batch,--batch_size", arguments.batch, "Number of sequences per rank and micro-batch", kLength);
  add(app, "--update-freq", arguments.update_freq,
      "Number of micro-batches in a step, whose gradients are reduced once", kLength);
  auto* steps = add(app, "--steps", arguments.steps, "Training steps", frame::count());
  app.add_option("--epochs", arguments.epochs, "Number of passes over the text, instead of --steps")
      ->check(frame::count())
      ->take_last()
      ->excludes(steps);
  app.add_option("--lr", arguments.lr, "Highest learning rate")->check(frame::positive_number())->take_last();
  frame::add_optimizer_flags(app, arguments.optimizer);
  add(app, "--warmup", arguments.warmup, "Number of steps until the learning rate reaches --lr",
      frame::count_or_none());
  add(app, "--weight-decay", arguments.weight_decay, "Weight decay of the matrices", frame::number_from_0());
  add(app, "--max-grad-norm", arguments.max_grad_norm, "Norm to which gradients are clipped", frame::positive_number());
  add(app, "--seed", arguments.seed, "Seed of the model, the data order and the sample", frame::seed());
  add(app, "--threads", arguments.threads, "Number of threads per rank", frame::threads());
  app.add_flag("--no-cuda", arguments.no_cuda, "Train on the CPU even if there is a GPU");
  frame::add_sharding_flags(app, arguments.sharding);
  app.add_option("--ddp-backend", "fairseq's name for --strategy full_shard, which is the default")
      ->check(CLI::IsMember({"fully_sharded"}))
      ->option_text("fully_sharded")
      ->take_last()
      ->excludes(app.get_option("--strategy"));
  add(app, "--sequence", arguments.sequence_ranks,
      "Number of neighbouring ranks that split each sequence, so that each of them has a part of its activations",
      kLength);
  add(app, "--sequence-method", arguments.sequence_method,
      "How attention is computed over these ranks: head-tail, ring, gather, heads or ring-self-attention",
      CLI::IsMember(frame::sequence_methods()));
  add(app, "--tensor", arguments.tensor_ranks,
      "Number of neighbouring ranks that split each block: its heads, and the inner features of its MLP", kLength)
      ->excludes(app.get_option("--mesh"));
  frame::add_pipeline_flags(app, arguments.pipeline);
  const auto is_number_or_auto = [](const std::string& text) {
    return text == "auto" ? std::string() : CLI::Range(1, 1 << 20)(text);
  };
  app.add_option("--slices", arguments.slices,
                 "Number of slices of tokens that pass through the stages of --pipe one after another (TeraPipe), or "
                 "auto to measure which slices are best")
      ->check(CLI::Validator(is_number_or_auto, ""))
      ->option_text("N|auto")
      ->take_last()
      ->needs("--pipe");
  frame::add_precision_flags(app, arguments.precision);
  frame::add_activation_flags(app, arguments.activations);
  app.add_flag("--no-reshard-after-forward", arguments.no_reshard_after_forward,
               "Keep whole parameters from forward to backward");
}

void add_checkpoint_flags(CLI::App& app, Arguments& arguments) {
  auto* save = app.add_option("--save", arguments.save, "Folder for checkpoints, created if it does not exist")
                   ->check(frame::path())
                   ->take_last();
  add(app, "--save-every", arguments.save_every, "Number of steps between checkpoints; 0: only after the last step",
      frame::count_or_none())
      ->needs(save);
  add(app, "--keep", arguments.keep, "Number of newest checkpoints to keep in the folder", frame::count())->needs(save);
  app.add_flag("--async-save", arguments.async_save, "Write checkpoints from a copy in memory while training continues")
      ->needs(save);
  app.add_option("--resume", arguments.resume,
                 "Resume from this checkpoint, or from the newest one in this folder, which may be empty if it is that "
                 "of --save")
      ->check(frame::path())
      ->take_last();
  app.add_option("--init-from", arguments.init_from,
                 "Source of the initial values: a checkpoint, a safetensors file, or the folder of a GPT-2 that "
                 "Python's transformers saved")
      ->check(frame::path())
      ->take_last();
}

void add_output_flags(CLI::App& app, Arguments& arguments) {
  add(app, "--eval-every", arguments.eval_every,
      "Number of steps between validations; 0 (the default with --epochs): only after each epoch and after the last "
      "step",
      frame::count_or_none());
  add(app, "--log-seconds", arguments.log_seconds,
      "Number of seconds between lines of progress if the output is not a terminal", frame::number_from_0());
  add(app, "--sample", arguments.sample, "Number of tokens of sample text to write at the end", frame::count_or_none());
  app.add_option("--prompt", arguments.prompt, "Text with which the sample begins")->take_last();
  add(app, "--temperature", arguments.temperature, "Temperature of the sample; below 1 likely tokens become likelier",
      frame::positive_number());
  add(app, "--top-k", arguments.top_k, "Number of likeliest tokens to draw from; 0: draw from all tokens",
      frame::count_or_none());
  frame::add_observing_flags(app, arguments.observing);
}

void apply_size(const CLI::App& app, Arguments& arguments) {
  const auto* chosen = app.get_option("--size");
  const std::string name = chosen->count() == 0 ? std::string(kSizes.front().name) : chosen->as<std::string>();
  const auto& size = *std::find_if(kSizes.begin(), kSizes.end(), [&](const Size& s) { return s.name == name; });
  const auto set = [&app](const char* flag, auto& value, auto by_size) {
    if (app.count(flag) == 0) value = by_size;
  };
  arguments.architecture = size.architecture;
  set("--dim", arguments.dim, size.dim);
  set("--layers", arguments.layers, size.layers);
  set("--heads", arguments.heads, size.heads);
  set("--seq", arguments.seq, size.seq);
  set("--lr", arguments.lr, size.lr);
}

void require(bool holds, const char* otherwise) {
  if (!holds) throw std::invalid_argument(otherwise);
}

void complete_pipeline(const CLI::App& app, Arguments& arguments) {
  auto& pipeline = arguments.pipeline;
  if (pipeline.ranks == 1) return;
  if (app.count("--micro-batches") == 0)
    pipeline.micro_batches = static_cast<int>(std::min<int64_t>(pipeline.micro_batches, arguments.batch));
  const bool is_interleaved = pipeline.schedule == "interleaved";
  require(pipeline.micro_batches <= arguments.batch,
          "--micro-batches must not exceed --batch, the number of sequences");
  require(!is_interleaved || pipeline.micro_batches % pipeline.ranks == 0,
          "--schedule interleaved needs --micro-batches to be a multiple of --pipe");
  require(arguments.layers >= int64_t{pipeline.ranks} * (is_interleaved ? pipeline.chunks : 1),
          "--pipe needs --layers to be at least the number of stages");
  if (arguments.slices.empty()) return;
  require(app.count("--schedule") == 0 || pipeline.schedule == "gpipe", "--slices requires --schedule gpipe");
  require(arguments.sequence_ranks == 1, "--slices cannot be combined with --sequence, because both split the tokens");
  require(arguments.dropout == 0, "--slices cannot be combined with --dropout: attention over slices has no dropout");
  require(arguments.slices == "auto" || std::stoll(arguments.slices) <= arguments.seq,
          "--slices must not exceed --seq, the number of tokens");
}

void complete(const CLI::App& app, Arguments& arguments) {
  apply_size(app, arguments);
  complete_pipeline(app, arguments);
  const bool has_vocab_size = app.count("--vocab_size") > 0;
  if (has_vocab_size && app.count("--tokenizer") == 0) arguments.tokenizer = Vocabulary::kSentencePiece;
  require(!has_vocab_size || arguments.tokenizer == Vocabulary::kSentencePiece,
          "--vocab_size is for --tokenizer sentencepiece; the other tokenizers determine the size of the vocabulary "
          "themselves");
  require(arguments.merges.empty() || arguments.tokenizer == Vocabulary::kGpt2, "--merges requires --tokenizer gpt2");
  require(!arguments.merges.empty() || arguments.tokenizer != Vocabulary::kGpt2,
          "--tokenizer gpt2 needs --merges, GPT-2's file vocab.bpe");
  require(arguments.dim % arguments.heads == 0, "--dim must be a multiple of --heads");
  require(arguments.architecture != Architecture::kLlama || arguments.dim / arguments.heads % 2 == 0,
          "--size llama needs --dim divided by --heads to be an even number");
  require(arguments.architecture != Architecture::kLlama || !arguments.tanh_gelu,
          "--size llama does not support --tanh-gelu");
  require(arguments.sequence_ranks == 1 || arguments.dropout == 0,
          "--sequence cannot be combined with --dropout: attention over several ranks has no dropout");
  require(arguments.tensor_ranks == 1 || arguments.dropout == 0,
          "--tensor cannot be combined with --dropout: ranks that share a block would drop different values");
  require(arguments.heads % arguments.tensor_ranks == 0, "--tensor must divide --heads");
  require(arguments.sequence_ranks <= arguments.seq, "--sequence must not exceed --seq, the number of tokens");
  if (arguments.epochs > 0 && app.count("--eval-every") == 0) arguments.eval_every = 0;
}

}  // namespace

void add_flags(CLI::App& app, Arguments& arguments) {
  add_text_flags(app, arguments);
  add_model_flags(app, arguments);
  add_training_flags(app, arguments);
  add_checkpoint_flags(app, arguments);
  add_output_flags(app, arguments);
  app.set_config("--config", "", "Read flags from a file, one per line, such as 'batch_size = 32'")
      ->option_text("FILE");
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.callback([&] { complete(app, arguments); });
}

}  // namespace gpt
