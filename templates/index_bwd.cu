// Includes every header of the backward and instantiates one configuration, so that an IDE, nvcc and a test can compile the headers unrendered.
#include <flashgen/fa3/backward/kernel.cuh>

struct DefaultConfig {
  using Element = cutlass::bfloat16_t;
  using Mask = flashgen::CausalMask;
  static constexpr int kHeadDimQK = 128, kHeadDimV = 128, kBlockM = 64, kBlockN = 128, kStagesQ = 2, kStagesDo = 2, kStagesDs = 2, kDqPasses = 1;
  static constexpr int kConsumerWarpgroups = 2, kChunkQK = 64, kChunkV = 64, kThreads = 384, kProducerRegisters = 24, kConsumerRegisters = 240;
  static constexpr int kSmemBytes = 198656;
  static constexpr bool kStoresFirst = true, kSplitRoles = false, kKeysInRegisters = false, kMaskLoops = true, kLateP = false, kDeterministic = false, kPersistent = false;
};

extern "C" __global__ void __launch_bounds__(256) index_backward_preprocess(const __grid_constant__ flashgen::BackwardParams params) {
  flashgen::Preprocess<DefaultConfig>::run(params);
}
extern "C" __global__ void __launch_bounds__(DefaultConfig::kThreads, 1) index_backward(const __grid_constant__ flashgen::BackwardParams params) {
  flashgen::fa3::backward::Backward<DefaultConfig>::run(params);
}
extern "C" __global__ void __launch_bounds__(256) index_backward_postprocess(const __grid_constant__ flashgen::BackwardParams params) {
  flashgen::Postprocess<DefaultConfig>::run(params);
}
