#pragma once
// One thread that adds the consumers' parts of dQ to its accumulator in global memory, in bulk; with kDeterministic in the order of the keys.
#include <flashgen/fa3/backward/key_tile.cuh>
#include <flashgen/fa3/backward/smem.cuh>

namespace flashgen::fa3::backward {

template <class Config>
struct DqWriter {
  using Dq = DqSplit<Config>;
  static constexpr int kParts = Dq::kColumns[1] > 0 ? 2 : 1;

  // Adds a pass of one warpgroup as soon as it is there.
  template <int kWarpgroup>
  __device__ __forceinline__ static void add(Smem<Config>& smem, float* accum, int pass, int phase) {
    ptx::barrier_wait(&smem.dq_full[kWarpgroup], phase);
    ptx::row_add(accum + Dq::offset(kWarpgroup) + pass * Dq::floats(kWarpgroup), smem.dq + kWarpgroup * Dq::floats(0), Dq::floats(kWarpgroup) * 4);
    ptx::store_commit();
  }

  __device__ __forceinline__ static void run(BackwardParams const& params, Smem<Config>& smem) {
    KeyTile<Config> const tile(params);
    int phase = 0;
    tile.for_each_m_block(params, [&](int head, int m_block) {
      int64_t const at = tile.m_tile(params, head, m_block);
      float* const accum = params.dq_accum + at * (Config::kBlockM * Config::kHeadDimQK);
      if constexpr (Config::kDeterministic) {
        int const turn = tile.turn(params, m_block);
        while (ptx::load_acquire(params.dq_turn + at) != turn) {}
        ptx::fence_async_proxy_all();
      }
      CUTE_UNROLL
      for (int pass = 0; pass < Dq::kPasses; ++pass) {
        add<0>(smem, accum, pass, phase);
        if constexpr (kParts == 2) add<1>(smem, accum, pass, phase);
        ptx::store_wait_read_but<kParts - 1>();
        ptx::barrier_arrive(&smem.dq_empty[0]);
        if constexpr (kParts == 2) {
          ptx::store_wait_read_but<0>();
          ptx::barrier_arrive(&smem.dq_empty[1]);
        }
        phase ^= 1;
      }
      if constexpr (Config::kDeterministic) {
        ptx::store_wait();
        ptx::fence_async_proxy_all();
        ptx::add_release(params.dq_turn + at, 1);
      }
    });
    ptx::store_wait();
  }
};

}  // namespace flashgen::fa3::backward
