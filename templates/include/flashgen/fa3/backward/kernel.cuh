#pragma once
// The Hopper backward's main kernel: a producer thread, threads that add dQ up, two consumer warpgroups. Include this, define a Config, call
// Preprocess<Config>::run, Backward<Config>::run and Postprocess<Config>::run in three kernels. attention_bwd.cu.jinja lists Config's members.
#include <flashgen/attention/postprocess.cuh>
#include <flashgen/attention/preprocess.cuh>
#include <flashgen/fa3/backward/by_keys.cuh>
#include <flashgen/fa3/backward/by_roles.cuh>
#include <flashgen/fa3/backward/dq_writer.cuh>
#include <flashgen/fa3/backward/key_producer.cuh>
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
  static_assert(!Config::kSplitRoles || !Config::kPersistent, "with roles a thread block computes one block of keys");
  // NOTE: a thread block passes the last dQ on behind the products of its next block of keys, so that one without rows would stop it.
  static_assert(!Config::kPersistent || cute::is_same<typename Config::Mask, FullMask>::value || cute::is_same<typename Config::Mask, CausalMask>::value,
                "some row sees every block of keys");
  static_assert(sizeof(Smem<Config>) == Config::kSmemBytes, "the plan's shared memory is not the kernel's");

  __device__ __forceinline__ static void consume(BackwardParams const& params, Smem<Config>& smem, int warpgroup) {
    if constexpr (Config::kSplitRoles) {
      if (warpgroup == 0) consume_as<Values<Config, Dq::kColumns[0]>>(params, smem, 0);
      else consume_as<Keys<Config, Dq::kColumns[1]>>(params, smem, 1);
    } else if constexpr (Dq::kColumns[0] == Dq::kColumns[1]) {
      consume_as<ByKeys<Config, Dq::kColumns[0]>>(params, smem, warpgroup);
    } else {
      if (warpgroup == 0) consume_as<ByKeys<Config, Dq::kColumns[0]>>(params, smem, 0);
      else consume_as<ByKeys<Config, Dq::kColumns[1]>>(params, smem, 1);
    }
  }
  template <class Consumer>
  __device__ __forceinline__ static void consume_as(BackwardParams const& params, Smem<Config>& smem, int warpgroup) {
    if constexpr (!Config::kPersistent) Consumer(params, smem, warpgroup, static_cast<int>(threadIdx.x) % 128, blockIdx.x, Step{}).run();
    else consume_tiles<Consumer>(params, smem, warpgroup);
  }
  // One block of keys after another. The warpgroup, the thread and the address of shared memory are asked for anew for each: all that follows from
  // them would else be kept across all of them, in registers that the loop over rows needs.
  template <class Consumer>
  __device__ __forceinline__ static void consume_tiles(BackwardParams const& params, Smem<Config>& first_smem, int first_warpgroup) {
    Step step;
    CUTE_NO_UNROLL
    for (int phase = 0;; phase ^= 1) {
      int thread = static_cast<int>(threadIdx.x) % 128;
      ptx::opaque(thread);
      int const warpgroup = ptx::uniform_again(first_warpgroup);
      Smem<Config>& smem = *reinterpret_cast<Smem<Config>*>(reinterpret_cast<char*>(&first_smem) + ptx::uniform_again(0));
      ptx::barrier_wait(&smem.keys.k_full, phase);
      int const tile = ptx::uniform(ptx::load_shared(smem.keys.tile));
      if (tile < 0) {
        if (step.index > 0) Consumer::pass_dq(smem, warpgroup, step.before());
        ptx::exit();
      }
      ptx::barrier_wait(&smem.keys.v_full, phase);
      Consumer consumer(params, smem, warpgroup, thread, tile, step);
      consumer.run();
      step = consumer.step;
    }
  }

  __device__ __forceinline__ static void run(BackwardParams const& params) {
    extern __shared__ __align__(1024) char shared_memory[];
    Smem<Config>& smem = *reinterpret_cast<Smem<Config>*>(shared_memory);
    int const warp = ptx::uniform(static_cast<int>(threadIdx.x) / 32);  // and so descriptors are
    if (threadIdx.x == 0) smem.init_barriers();
    __syncthreads();
    if (warp < 4) {
      ptx::release_registers_to<Config::kProducerRegisters>();
      if (warp == 0 && ptx::elect_one()) Producer<Config>::run(params, smem);
      else if (warp >= 1 && warp <= kDqWriters && ptx::elect_one()) DqWriter<Config>::run(params, smem);
      if constexpr (Config::kPersistent) {
        if (warp == 3 && ptx::elect_one()) KeyProducer<Config>::run(params, smem);
      }
    } else {
      ptx::claim_registers_up_to<Config::kConsumerRegisters>();
      consume(params, smem, warp / 4 - 1);
    }
  }
};

}  // namespace flashgen::fa3::backward
