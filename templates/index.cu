// Includes every header and instantiates one configuration, so that an IDE, nvcc and a test can compile the headers unrendered.
#include <flashgen/fa3/forward.cuh>

struct DefaultConfig {
  using Element = cutlass::bfloat16_t;
  using Mask = flashgen::CausalMask;
  using Scheduler = flashgen::DynamicPersistentScheduler;
  static constexpr int kHeadDimQK = 128, kHeadDimV = 128, kBlockM = 128, kBlockN = 128, kStages = 2, kStagesQ = 1, kChunkQK = 64, kChunkV = 64;
  static constexpr int kConsumerWarpgroups = 2, kThreads = 384, kProducerRegisters = 24, kConsumerRegisters = 240;
  static constexpr int kSmemBytes = 197632;
  static constexpr bool kOverlap = true, kPingPong = true, kRescaleEarly = true, kLazyRescale = true, kEarlyStart = true, kOutputTile = true;
};

extern "C" __global__ void __launch_bounds__(DefaultConfig::kThreads, 1) index_forward(const __grid_constant__ flashgen::ForwardParams params) {
  flashgen::fa3::Forward<DefaultConfig>::run(params);
}
