#pragma once
/// \file
/// What `fsdp-gpt` reads from its command line or a file.

#include <cstdint>
#include <string>

#include "frame/activation_flags.h"
#include "frame/observing_flags.h"
#include "frame/pipeline_flags.h"
#include "frame/precision_flags.h"
#include "frame/sharding_flags.h"

namespace CLI {
class App;
}

namespace gpt {

enum class Architecture { kGpt, kLlama };
enum class Vocabulary { kCharacters, kWords, kGpt2, kSentencePiece };

struct Arguments {
  /// A file, or a folder with train.txt and valid.txt; empty: the text that is part of the program.
  std::string text;
  Vocabulary tokenizer = Vocabulary::kCharacters;
  /// Tokens that SentencePiece makes.
  int64_t vocab_size = 5000;
  /// GPT-2's file vocab.bpe.
  std::string merges;

  Architecture architecture = Architecture::kGpt;
  int64_t dim = 0, layers = 0, heads = 0, seq = 0;
  double dropout = 0;
  bool tanh_gelu = false;

  /// Ranks that have some blocks each, and how micro-batches pass them.
  frame::PipelineFlags pipeline;
  /// Slices of tokens of each micro-batch, a number or "auto"; empty: sequences stay whole.
  std::string slices;
  /// Ranks that share each sequence, and how attention goes over them: a name of sequence_methods().
  int64_t sequence_ranks = 1;
  std::string sequence_method = "head-tail";
  /// Ranks that have a part of each block.
  int64_t tensor_ranks = 1;

  /// Sequences per rank and micro-batch; of ranks that share sequences, blocks or the model, for all of these together.
  int64_t batch = 16;
  /// Micro-batches of a step.
  int64_t update_freq = 1;
  int64_t steps = 1700;
  /// Passes over the text, which decide on the steps; 0: `steps` of sequences from anywhere.
  int64_t epochs = 0;
  std::string optimizer = "adamw";
  double lr = 0;
  /// Steps over which the learning rate rises to `lr`; then it falls to a tenth of it.
  int64_t warmup = 100;
  double weight_decay = 0.1;
  double max_grad_norm = 1.0;
  int64_t seed = 0;
  int64_t threads = 1;
  frame::ShardingFlags sharding;
  frame::PrecisionFlags precision;
  frame::ActivationFlags activations;
  frame::ObservingFlags observing;
  bool no_reshard_after_forward = false;
  bool no_cuda = false;

  /// Folder of the checkpoints that are written; empty: none.
  std::string save;
  /// Steps from one to the next; 0: only after the last step.
  int64_t save_every = 0;
  /// How many of them stay.
  int64_t keep = 2;
  /// They are written while training goes on.
  bool async_save = false;
  /// Folder of the checkpoints to go on from, or one of them.
  std::string resume;
  /// What has the initial values: a checkpoint, a file of whole tensors, or the folder of a GPT-2.
  std::string init_from;

  /// Steps from one validation to the next; 0: only after an epoch and after the last step.
  int64_t eval_every = 250;
  /// Seconds between two lines of progress where there is no terminal.
  double log_seconds = 5.0;

  /// Tokens of text to write at the end.
  int64_t sample = 400;
  std::string prompt;
  double temperature = 0.8;
  /// Draw from so many of the likeliest tokens; 0: from all.
  int64_t top_k = 0;
};

/// Lets `app` fill `arguments`, whose values are the defaults; what is not given gets the values of --size, or follows
/// from other flags. Flags that contradict each other end the parsing with std::invalid_argument.
void add_flags(CLI::App& app, Arguments& arguments);

}  // namespace gpt
