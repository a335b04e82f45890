#pragma once
// The Hopper forward: one producer thread and kConsumerWarpgroups consumer warpgroups (FlashAttention-3's schedule). Include this, define a
// Config, call Forward<Config>::run. attention_fwd.cu.jinja lists Config's members.
#include <flashgen/attention/mask.cuh>
#include <flashgen/fa3/consumer.cuh>
#include <flashgen/fa3/producer.cuh>

namespace flashgen::fa3 {

template <class Config>
struct Forward {
  static_assert(Config::kBlockM == 64 * Config::kConsumerWarpgroups, "a consumer warpgroup computes 64 query rows");
  static_assert(Config::kThreads == 128 * (Config::kConsumerWarpgroups + 1), "one producer warpgroup beside the consumers");
  static_assert(Config::kBlockN % 16 == 0 && Config::kBlockN <= 256, "wgmma takes keys in steps of 16, at most 256");
  static_assert(Config::kHeadDimQK % 8 == 0 && Config::kHeadDimV % 8 == 0 && Config::kHeadDimV <= 256, "head dimensions are multiples of 8");
  static_assert(Config::kStages >= 2 || !Config::kOverlap, "overlapped products hold two stages");
  static_assert(sizeof(Smem<Config>) == Config::kSmemBytes, "the plan's shared memory is not the kernel's");

  __device__ __forceinline__ static void run(ForwardParams const& params) {
    extern __shared__ __align__(1024) char shared_memory[];
    Smem<Config>& smem = *reinterpret_cast<Smem<Config>*>(shared_memory);
    int const warpgroup = ptx::uniform(static_cast<int>(threadIdx.x) / 128);  // and so descriptors are
    if (threadIdx.x == 0) smem.init_barriers();
    __syncthreads();
    if (warpgroup == 0) {
      ptx::release_registers_to<Config::kProducerRegisters>();
      if (threadIdx.x < 32 && ptx::elect_one()) Producer<Config>::run(params, smem);
    } else {
      ptx::claim_registers_up_to<Config::kConsumerRegisters>();
      Consumer<Config>(params, smem, warpgroup - 1, static_cast<int>(threadIdx.x) % 128).run();
    }
  }
};

}  // namespace flashgen::fa3
