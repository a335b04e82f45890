#pragma once
// The Hopper backward's main kernel: a producer thread, threads that add dQ up, two consumer warpgroups. Include this, define a Config, call
// Preprocess<Config>::run, Backward<Config>::run and Postprocess<Config>::run in three kernels. attention_bwd.cu.jinja lists Config's members.
#include <flashgen/attention/postprocess.cuh>
#include <flashgen/attention/preprocess.cuh>
#include <flashgen/fa3/backward/by_keys.cuh>
#include <flashgen/fa3/backward/by_roles.cuh>
#include <flashgen/fa3/backward/dq_writer.cuh>
#include <flashgen/fa3/backward/producer.cuh>

namespace flashgen::fa3::backward {

template <class Config>
struct Backward {
  using Dq = DqSplit<Config>;
  static_assert(Config::kBlockN == (Config::kSplitRoles ? 64 : 128), "a consumer warpgroup holds gradients of 64 keys");
  static_assert(Config::kBlockM == 64 || ((Config::kBlockM == 80 || Config::kBlockM == 128) && !Config::kSplitRoles), "64, 80 or 128 query rows at once");
  static_assert(Config::kConsumerWarpgroups == 2 && Config::kThreads == 384, "two consumer warpgroups, one for copies");
  static_assert(Config::kHeadDimQK % 8 == 0 && Config::kHeadDimV % 8 == 0 && Config::kHeadDimQK <= 256 && Config::kHeadDimV <= 256,
                "head dimensions are multiples of 8 up to 256");
  static_assert(!Config::kSplitRoles || Dq::kColumns[1] > 0, "both roles have columns of dQ");
  static_assert(!Config::kSplitRoles || !Config::kKeysInRegisters, "with roles both warpgroups have the same keys");
  static_assert(!Config::kSplitRoles || !Config::kMaskLoops, "with roles one loop asks for each block whether it is masked");
  static_assert(sizeof(Smem<Config>) == Config::kSmemBytes, "the plan's shared memory is not the kernel's");

  __device__ __forceinline__ static void consume(BackwardParams const& params, Smem<Config>& smem, int warpgroup) {
    int const thread = static_cast<int>(threadIdx.x) % 128;
    if constexpr (Config::kSplitRoles) {
      if (warpgroup == 0) Values<Config, Dq::kColumns[0]>(params, smem, 0, thread).run();
      else Keys<Config, Dq::kColumns[1]>(params, smem, 1, thread).run();
    } else if constexpr (Dq::kColumns[0] == Dq::kColumns[1]) {
      ByKeys<Config, Dq::kColumns[0]>(params, smem, warpgroup, thread).run();
    } else {
      if (warpgroup == 0) ByKeys<Config, Dq::kColumns[0]>(params, smem, 0, thread).run();
      else ByKeys<Config, Dq::kColumns[1]>(params, smem, 1, thread).run();
    }
  }

  __device__ __forceinline__ static void run(BackwardParams const& params) {
    extern __shared__ __align__(1024) char shared_memory[];
    Smem<Config>& smem = *reinterpret_cast<Smem<Config>*>(shared_memory);
    int const warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);  // uniform, so that descriptors live in uniform registers
    if (threadIdx.x == 0) smem.init_barriers();
    __syncthreads();
    if (warp < 4) {
      ptx::release_registers_to<Config::kProducerRegisters>();
      if (warp == 0 && ptx::elect_one()) Producer<Config>::run(params, smem);
      else if (warp >= 1 && warp <= kDqWriters && ptx::elect_one()) DqWriter<Config>::run(params, smem, warp - 1);
    } else {
      ptx::claim_registers_up_to<Config::kConsumerRegisters>();
      consume(params, smem, warp / 4 - 1);
    }
  }
};

}  // namespace flashgen::fa3::backward
