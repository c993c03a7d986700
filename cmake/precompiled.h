#pragma once
/// \file
/// This header comes last in the precompiled header. It makes Clang instantiate there what it would otherwise
/// instantiate in every file.

#ifdef __clang__
#include <torch/script.h>
#include <torch/torch.h>

// Clang instantiates templates in a precompiled header, but not virtual functions of class templates: it instantiates
// those of each constructed class at the end of every file that includes the header. This takes more than a second for
// each file. The virtual functions of a local class, and of its bases, are instantiated at once. This header therefore
// derives a local class from each class that `-ftime-trace` names for an empty file.
namespace fsdp::precompiled {

template <class Class>
void instantiate_virtual_functions() {
  struct Local : Class {};
  static_cast<Local*>(nullptr)->Local::~Local();
}

template <class... Classes>
void instantiate_virtual_functions_of() {
  (instantiate_virtual_functions<Classes>(), ...);
}

// No code calls this function, so files contain no code for it.
inline void instantiate() {
  namespace data = torch::data::datasets;
  namespace jit = torch::jit;
  namespace nn = torch::nn;
  namespace optim = torch::optim;
  instantiate_virtual_functions_of<c10::ListType, c10::FutureType, c10::AwaitType, c10::RRefType>();
  instantiate_virtual_functions_of<data::MNIST, data::TensorDataset>();
  instantiate_virtual_functions_of<jit::FloatAttr, jit::ComplexAttr, jit::StringAttr, jit::FloatsAttr,
                                   jit::ComplexValsAttr, jit::StringsAttr, jit::IntsAttr, jit::TypesAttr,
                                   jit::TensorsAttr>();
  instantiate_virtual_functions_of<
      nn::AdaptiveLogSoftmaxWithLossImpl, nn::BilinearImpl, nn::Conv1dImpl, nn::Conv2dImpl, nn::Conv3dImpl,
      nn::ConvTranspose1dImpl, nn::ConvTranspose2dImpl, nn::ConvTranspose3dImpl, nn::CrossMapLRN2dImpl,
      nn::EmbeddingBagImpl, nn::EmbeddingImpl, nn::FoldImpl, nn::FractionalMaxPool2dImpl, nn::FractionalMaxPool3dImpl,
      nn::GRUCellImpl, nn::GRUImpl, nn::GroupNormImpl, nn::LSTMCellImpl, nn::LSTMImpl, nn::LayerNormImpl,
      nn::LinearImpl, nn::LocalResponseNormImpl, nn::LogSoftmaxImpl, nn::MultiheadAttentionImpl, nn::ParameterDictImpl,
      nn::RNNCellImpl, nn::RNNImpl, nn::SoftmaxImpl, nn::SoftminImpl, nn::ThresholdImpl, nn::TransformerDecoderImpl,
      nn::TransformerDecoderLayerImpl, nn::TransformerEncoderImpl, nn::TransformerEncoderLayerImpl, nn::UnflattenImpl,
      nn::UnfoldImpl>();
  // This also instantiates the functions that these classes override.
  instantiate_virtual_functions_of<
      nn::Cloneable<nn::ModuleDictImpl>, nn::Cloneable<nn::SequentialImpl>, nn::ConvNdImpl<1, nn::ConvTranspose1dImpl>,
      nn::ConvNdImpl<2, nn::ConvTranspose2dImpl>, nn::ConvNdImpl<3, nn::ConvTranspose3dImpl>>();
  instantiate_virtual_functions_of<optim::AdagradOptions, optim::AdamOptions, optim::AdamWOptions, optim::LBFGSOptions,
                                   optim::RMSpropOptions, optim::SGDOptions>();
  instantiate_virtual_functions_of<optim::AdagradParamState, optim::AdamParamState, optim::AdamWParamState,
                                   optim::LBFGSParamState, optim::RMSpropParamState, optim::SGDParamState>();
}

}  // namespace fsdp::precompiled
#endif
