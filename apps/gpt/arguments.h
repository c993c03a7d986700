#pragma once
/// \file
/// The flags of `fsdp-gpt`, which come from the command line or from a file.

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
  /// Path of a file, or of a folder with train.txt and valid.txt. If it is empty, the program uses its embedded text.
  std::string text;
  Vocabulary tokenizer = Vocabulary::kCharacters;
  /// Number of tokens in the vocabulary that SentencePiece learns.
  int64_t vocab_size = 5000;
  /// Path of GPT-2's file vocab.bpe.
  std::string merges;

  Architecture architecture = Architecture::kGpt;
  int64_t dim = 0, layers = 0, heads = 0, seq = 0;
  double dropout = 0;
  bool tanh_gelu = false;

  /// Number of ranks that each have some of the blocks, and the schedule of the micro-batches.
  frame::PipelineFlags pipeline;
  /// Number of slices of tokens into which a micro-batch is split, or "auto". If it is empty, sequences are not split.
  std::string slices;
  /// Number of ranks that split each sequence, and the method by which they compute attention, one of the names in
  /// sequence_methods().
  int64_t sequence_ranks = 1;
  std::string sequence_method = "head-tail";
  /// Number of ranks that split each block.
  int64_t tensor_ranks = 1;

  /// Number of sequences per rank and micro-batch. Ranks that split sequences, blocks or the model share these
  /// sequences.
  int64_t batch = 16;
  /// Number of micro-batches whose gradients are accumulated in a step.
  int64_t update_freq = 1;
  int64_t steps = 1700;
  /// Number of passes over the text, which determines the number of steps. If it is 0, training runs `steps` steps, and
  /// each sequence begins at a random place of the text.
  int64_t epochs = 0;
  std::string optimizer = "adamw";
  double lr = 0;
  /// Number of steps in which the learning rate rises to `lr`; then it falls to a tenth of `lr`.
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

  /// Folder in which checkpoints are written; none are written if it is empty.
  std::string save;
  /// Number of steps between two checkpoints; 0 means that the only checkpoint is written after the last step.
  int64_t save_every = 0;
  /// Number of checkpoints that stay in the folder.
  int64_t keep = 2;
  /// True if checkpoints are written while training continues.
  bool async_save = false;
  /// Folder from whose newest checkpoint the program resumes, or one checkpoint.
  std::string resume;
  /// Source of the initial values: a checkpoint, a safetensors file of whole tensors, or the folder of a GPT-2.
  std::string init_from;

  /// Number of steps between two validations; 0 means a validation only after each epoch and after the last step.
  int64_t eval_every = 250;
  /// Seconds between two lines of progress if the output is not a terminal.
  double log_seconds = 5.0;

  /// Number of tokens of sample text that are written at the end.
  int64_t sample = 400;
  std::string prompt;
  double temperature = 0.8;
  /// Number of the likeliest tokens from which the sample is drawn; 0 means that it is drawn from all tokens.
  int64_t top_k = 0;
};

/// Lets `app` fill `arguments`, whose values are the defaults. Flags that the user does not give get the values of
/// --size, or follow from other flags. The parsing throws std::invalid_argument if flags contradict each other.
void add_flags(CLI::App& app, Arguments& arguments);

}  // namespace gpt
